# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Where the alias passes stand in `to_executorch()`."""

from dataclasses import replace
from functools import partial
from typing import Any, List, Optional

from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite
from executorch.exir.passes.memory_planning_pass import MemoryPlanningPass
from executorch.exir.program import _program as upstream
from executorch.exir.tensor import ALIGNMENT
from executorch_slice._activation import is_enabled
from executorch_slice.exir.alias_constants import mark_unique_constants
from executorch_slice.exir.alias_decision import Decisions
from executorch_slice.exir.alias_effects import OWNS_RESULTS
from executorch_slice.exir.alias_roots import PlannedMemory
from executorch_slice.exir.capture._config import AliasConfig, ExecutorchBackendConfig
from executorch_slice.exir.memory import COPY_OPS, is_alias
from executorch_slice.exir.passes.analyze_aliases_pass import (
    AnalyzeAliasesPass,
    DECISIONS_KEY,
    PLAN_IS_TRUSTED_KEY,
)
from executorch_slice.exir.passes.contiguous_bases_pass import ContiguousBasesPass
from executorch_slice.exir.passes.own_branch_results_pass import OwnBranchResultsPass
from executorch_slice.exir.passes.replace_slice_copy_with_slice_pass import (
    ReplaceSliceCopyWithSlicePass,
)
from executorch_slice.exir.passes.replace_view_copy_with_view_pass import (
    ReplaceViewCopyWithViewPass,
)
from executorch_slice.exir.verification.plan_verifier import verify_plan
from torch.fx import GraphModule

_upstream_pre_memory_planning_passes = upstream.pre_memory_planning_passes
_upstream_emit_program = upstream.emit_program
_upstream_to_executorch = upstream.EdgeProgramManager.to_executorch
_UpstreamReplaceViewCopyWithViewPass = upstream.ReplaceViewCopyWithViewPass


def pre_memory_planning_passes(config: Any, name: Optional[str] = None) -> List[Any]:
    """Upstream's passes, with the decision and the rewrites where views are elided."""
    passes: List[Any] = _upstream_pre_memory_planning_passes(config, name)
    alias = (
        config.alias if isinstance(config, ExecutorchBackendConfig) else AliasConfig()
    )
    enabled = alias.enabled and config.remove_view_copy
    analysis = AnalyzeAliasesPass(
        planned_memory(config, name),
        name or "forward",
        replace(alias, enabled=enabled),
    )
    if not enabled:
        return [analysis, *passes]
    (at,) = (
        i
        for i, p in enumerate(passes)
        if isinstance(p, _UpstreamReplaceViewCopyWithViewPass)
    )
    memory = analysis.memory
    passes[at : at + 1] = [
        ContiguousBasesPass(),
        *([OwnBranchResultsPass(memory.graph_outputs)] if memory.trusted else []),
        analysis,
        ReplaceViewCopyWithViewPass(analysis),
        ReplaceSliceCopyWithSlicePass(analysis),
    ]
    return passes


def emit_program(methods: Any, *args: Any, **kwargs: Any) -> Any:
    """Upstream's, for programs whose memory plans are proven right.

    Raises:
        PlanVerificationError: a method would read bytes that were overwritten.
    """
    programs = methods.values() if isinstance(methods, dict) else [methods]
    for program in programs:
        if program.graph_module.meta.get(PLAN_IS_TRUSTED_KEY, False):
            verify_plan(program)
    return _upstream_emit_program(methods, *args, **kwargs)


def to_executorch(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Upstream's, also when it is called again; its result carries the decisions.

    `to_executorch()` leaves what it lowered in the edge programs. Its first passes
    know no alias op, so each becomes the copy that it was.
    """
    for program in self._edge_programs.values():
        program.graph_module.meta.pop(DECISIONS_KEY, None)
        for module in program.graph_module.modules():
            for node in module.graph.nodes if isinstance(module, GraphModule) else ():
                node.meta.pop(OWNS_RESULTS, None)
                if is_alias(node):
                    node.target = COPY_OPS[node.target]
    if is_enabled():
        mark_unique_constants(self._edge_programs.values())
    manager = _upstream_to_executorch(self, *args, **kwargs)
    manager.alias_decisions = [
        decision
        for method in sorted(manager.methods)
        for decision in manager.exported_program(method).graph_module.meta.get(
            DECISIONS_KEY, ()
        )
    ]
    return manager


def planned_memory(config: Any, name: Optional[str]) -> PlannedMemory:
    """What the memory planning pass of method `name` will place."""
    planner = config.memory_planning_pass
    if isinstance(planner, dict):
        default = upstream.ExecutorchBackendConfig().memory_planning_pass
        planner = planner.get(name, default)
    alignment = config.constant_tensor_alignment or ALIGNMENT
    if config.external_constants:
        alignment = None
    if type(planner) is not MemoryPlanningPass or not _is_shipped(planner):
        return PlannedMemory(trusted=False, constant_alignment=alignment)
    return PlannedMemory(
        graph_inputs=planner.alloc_graph_input,
        graph_outputs=planner.alloc_graph_output,
        mutable_buffers=planner.alloc_mutable_buffers,
        shared_buffers=planner.share_mutable_buffers,
        algorithm=planner.memory_planning_algo,
        alignment=planner.alignment,
        by_device=config.enable_non_cpu_memory_planning,
        constant_alignment=alignment,
    )


def _is_shipped(planner: Any) -> bool:
    """Whether `planner` runs only algorithms that ExecuTorch ships."""
    suite = planner.memory_planning_algo
    if type(suite) is not MemoryPlanningAlgorithmSuite:
        return False
    algorithms = [a.func if isinstance(a, partial) else a for a in suite.algo_list]
    homes = [getattr(a, "__module__", "") for a in algorithms]
    return all(home.startswith("executorch.exir.") for home in homes)


def decisions(manager: Any) -> Decisions:
    """One Decision for each copy of the slice and view families in a lowered program.

    Args:
        manager: what `to_executorch()` returned.

    Returns:
        The decisions, a list that prints as a table, methods in name order; none where
        the program was lowered without this package.

    Raises:
        TypeError: `manager` is something else, as an edge program.
    """
    if not isinstance(manager, upstream.ExecutorchProgramManager):
        raise TypeError(f"{type(manager).__name__} is no ExecutorchProgramManager")
    return Decisions(getattr(manager, "alias_decisions", ()))
