# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Analyses a method once, for all passes that apply what it decides."""

import re
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Set

import torch
from executorch_slice.exir.alias_analysis import AliasAnalysis
from executorch_slice.exir.alias_copy import Copy
from executorch_slice.exir.alias_decision import Decision
from executorch_slice.exir.alias_effects import (
    CONTROL_FLOW,
    control_flow_modules,
    OWNS_RESULTS,
    scanned_rows,
)
from executorch_slice.exir.alias_layout import overload_of, upper_bound_nbytes
from executorch_slice.exir.alias_roots import PlannedMemory
from executorch_slice.exir.alias_selection import select_aliases
from executorch_slice.exir.arena_model import ArenaModel
from executorch_slice.exir.capture._config import AliasConfig
from executorch_slice.exir.memory_planning import share_inplace_specs, with_reserved
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassBase, PassResult

DECISIONS_KEY = "alias_decisions"
PLAN_IS_TRUSTED_KEY = "alias_plan_is_trusted"
_TORCH = str(Path(torch.__file__).parent)


class AnalyzeAliasesPass(PassBase):  # type: ignore[misc]
    """Decides every copy of a method and its branches, and changes none.

    Leaves the decisions in ``graph_module.meta["alias_decisions"]``, and whether the
    memory plan is one to verify in ``"alias_plan_is_trusted"``. In-place results get
    the spec of the argument they are written to, as memory planning gives them later,
    so that an alias of one has a root that stays.

    Args:
        memory: what the planner will place.
        method: name of the method, for the decisions.
        config: which aliases are wanted.
    """

    def __init__(
        self,
        memory: PlannedMemory = PlannedMemory(),
        method: str = "forward",
        config: AliasConfig = AliasConfig(),
    ) -> None:
        super().__init__()
        self.memory = memory
        self.method = method
        self.config = config
        self.analyses: Dict[GraphModule, AliasAnalysis] = {}

    def call(self, graph_module: GraphModule) -> PassResult:
        self.analyses = {}
        rows: Set[Node] = set()
        for name, module in graph_module.named_modules():
            if isinstance(module, GraphModule):
                if self.config.enabled:
                    share_inplace_specs(module)
                rows |= scanned_rows(module)
                self.analyses[module] = AliasAnalysis(
                    module,
                    self.memory,
                    not name,
                    rows,
                    self.config.enabled,
                    self.config.emit_et_slice,
                )
        if self.config.enabled and self.memory.trusted:
            self._select()
        decisions = [
            self._decision(copy, f"{name}." if name else "")
            for name, module in graph_module.named_modules()
            if isinstance(module, GraphModule)
            for copy in self.analyses[module].copies.values()
            if self.config.enabled or not copy.is_view
        ]
        graph_module.meta[DECISIONS_KEY] = decisions
        graph_module.meta[PLAN_IS_TRUSTED_KEY] = (
            self.config.enabled and self.memory.trusted
        )
        return PassResult(graph_module, False)

    def copies(self) -> Iterator[Copy]:
        """Each copy of the method and its branches, bases before what they serve."""
        for analysis in self.analyses.values():
            yield from analysis.copies.values()

    def _select(self) -> None:
        """Gives up what the config does not want, branches before their callers."""
        sizes: Dict[GraphModule, List[int]] = {}
        owned = {
            branch
            for module in self.analyses
            for node in module.graph.nodes
            if node.meta.get(OWNS_RESULTS, False)
            for branch in control_flow_modules(module, node)
        }
        for module, analysis in reversed(self.analyses.items()):
            branches = [
                sizes[branch]
                for node in module.graph.nodes
                if node.target in CONTROL_FLOW
                for branch in control_flow_modules(module, node)
            ]
            reserved = with_reserved([], branches)
            model = ArenaModel(analysis, module not in owned, reserved)
            may_grow = self.config.memory_growth == "allow"
            select_aliases(model, may_grow, self.config.min_alignment)
            if not analysis.is_method:
                sizes[module] = model.plan()[0]

    def _decision(self, copy: Copy, prefix: str) -> Decision:
        return Decision(
            method=self.method,
            node=prefix + copy.node.name,
            op=str(overload_of(copy.source)),
            verdict=copy.verdict,
            reason=copy.reason,
            nbytes=upper_bound_nbytes(copy.node.meta.get("spec")),
            base=prefix + copy.root.name,
            byte_offset=copy.byte_offset if copy.layout and copy.is_located else None,
            growth=copy.growth,
            source=_source_line(copy.node),
        )


def analysed(
    graph_module: GraphModule, analysis: Optional[AnalyzeAliasesPass]
) -> AnalyzeAliasesPass:
    """`analysis` if there is one, else a new one that has seen `graph_module`."""
    if analysis is None:
        analysis = AnalyzeAliasesPass()
        analysis(graph_module)
    return analysis


def _source_line(node: Node) -> str:
    """The innermost line outside of PyTorch that `node` comes from, or ""."""
    frames = re.findall(r'File "(.+?)", line (\d+)', node.meta.get("stack_trace") or "")
    own = [
        (path, line)
        for path, line in frames
        if not path.startswith((_TORCH, "<")) and "-packages/torch/" not in path
    ]
    return "{0.name}:{1}".format(Path(own[-1][0]), own[-1][1]) if own else ""
