# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""What memory planning will do with a graph, before the graph is rewritten."""

import copy
from types import SimpleNamespace
from typing import Dict, List, Sequence, Set, Tuple

from executorch.exir.schema import DeviceType, TensorShapeDynamism
from executorch.exir.sym_util import eval_shape_upper_bound
from executorch.exir.tensor import TensorSpec
from executorch_slice.exir.alias_analysis import AliasAnalysis
from executorch_slice.exir.alias_effects import annotated_argument
from executorch_slice.exir.memory_planning import is_inplace_result, with_reserved
from torch.fx import Node
from torch.utils._pytree import tree_leaves

Lifetime = List[int]


class ArenaModel:
    """The arenas of one graph under the verdicts that its analysis has at the moment.

    The tensors, their order and their lifetimes are those that `apply_algo` in
    ``executorch.exir.memory_planning`` collects from the lowered graph, except that a
    node counts as one index here, and as two there if it gets an `alloc`.

    Args:
        analysis: of a method or a branch.
        plans_outputs: whether the results of a branch are planned with it.
        reserved: bytes of each arena that its branches take.
    """

    def __init__(
        self,
        analysis: AliasAnalysis,
        plans_outputs: bool = True,
        reserved: Sequence[int] = (),
    ) -> None:
        self.analysis = analysis
        self.memory = analysis.memory
        self.reserved = list(reserved)
        self.nodes = list(analysis.effects.order)
        self._referred = [(node, *node.all_input_nodes) for node in self.nodes]
        self._specs = {node: self.specs_of(node) for node in self.nodes}
        inputs = [n for n in self.nodes if n.op == "placeholder"]
        outputs = [n for n in self.nodes if n.op == "output"]
        self._buffers = {n for n in inputs if n.meta.get("is_mutable_buffer", False)}
        skipped: List[Node] = []
        plans_inputs = any(node in analysis.rows for node in inputs)
        if analysis.is_method:
            plans_inputs = self.memory.graph_inputs
            plans_outputs = self.memory.graph_outputs
        if not plans_inputs:
            skipped += [n for n in inputs if n not in self._buffers]
        if not plans_outputs:
            skipped += outputs
        if self.memory.shared_buffers or not self.memory.mutable_buffers:
            skipped += self._buffers
        self._stand_ins: Dict[int, _PlannedSpec] = {}
        skip = {id(spec) for node in skipped for spec in self._specs[node]}
        self._placed = {
            node: [spec for spec in specs if self._is_planned(spec, node, skip)]
            for node, specs in self._specs.items()
            if node.op != "get_attr"
        }
        self._annotated = [
            (node, base)
            for node in self.nodes
            if (base := annotated_argument(node)) is not None
        ]

    @staticmethod
    def specs_of(node: Node) -> Tuple[TensorSpec, ...]:
        """The specs of the tensors that `node` computes."""
        leaves = tree_leaves(node.meta.get("spec"))
        return tuple(spec for spec in leaves if isinstance(spec, TensorSpec))

    def specs(self, node: Node) -> Tuple[TensorSpec, ...]:
        """The specs that `node` needs memory for; those of its root, if it is an alias.

        A split of which every piece is an alias needs none: it disappears.
        """
        parent = self.analysis.alias_base(node)
        while parent is not None:
            node, parent = parent, self.analysis.alias_base(parent)
        return () if self.analysis.disappears(node) else self._specs[node]

    def lifetimes(self) -> Dict[int, Lifetime]:
        """First and last node index of each spec, by its `id`."""
        found: Dict[int, Lifetime] = {}
        specs: Dict[Node, Tuple[TensorSpec, ...]] = {}
        last = len(self.nodes) - 1
        for index, (node, referred) in enumerate(zip(self.nodes, self._referred)):
            base = self.analysis.alias_base(node)
            if base is not None:
                specs[node] = specs[base]
            elif self.analysis.disappears(node):
                specs[node] = ()
                continue
            else:
                specs[node] = self._specs[node]
            for other in referred:
                at = index - (node.op == "output" and is_inplace_result(other))
                for spec in specs[other]:
                    found.setdefault(id(spec), [at, at])[1] = at
            if node.op == "placeholder":
                for spec in specs[node]:
                    found[id(spec)] = [0, last if node in self._buffers else index]
        return found

    def plan(self) -> Tuple[List[int], Dict[int, TensorSpec]]:
        """Runs the planner's own algorithm on stand-ins for the specs.

        Returns:
            The bytes of each arena, and the stand-in of each spec by its `id`; these
            are good until the next plan.

        Raises:
            Exception: what the algorithm raises where it finds no place.
        """
        planned = self.tensors(self.lifetimes())
        graph = SimpleNamespace(input_mem_buffer_sizes=list(self.reserved) or [0, 0])
        sizes: List[int] = self.memory.algorithm(  # type: ignore[misc]
            self.memory.alignment, list(planned.values()), graph, None, 0
        )
        return with_reserved(sizes, [self.reserved]), planned

    def tensors(self, lifetimes: Dict[int, Lifetime]) -> Dict[int, TensorSpec]:
        """The stand-in of each spec that is planned, by its `id`, with its lifetime."""
        planned: Dict[int, TensorSpec] = {}
        joined: List[Tuple[TensorSpec, TensorSpec]] = []
        for node, placed in self._placed.items():
            if self.analysis.alias_base(node) or self.analysis.disappears(node):
                continue
            for spec in placed:
                if id(spec) not in planned:
                    planned[id(spec)] = self._planned(spec, lifetimes[id(spec)])
        for node, base in self._annotated:
            joined += zip(self.specs(node), self.specs(base))
        for inner_spec, outer_spec in reversed(joined):
            inner, outer = planned.get(id(inner_spec)), planned.get(id(outer_spec))
            if inner is not None and outer is not None:
                inner.storage_base = outer
                outer.lifetime[0] = min(outer.lifetime[0], inner.lifetime[0])
                outer.lifetime[1] = max(outer.lifetime[1], inner.lifetime[1])
        return planned

    def _is_planned(self, spec: TensorSpec, node: Node, skip: Set[int]) -> bool:
        return not (
            id(spec) in skip
            or spec.shape_dynamism == TensorShapeDynamism.DYNAMIC_UNBOUND
            or (self.memory.by_device and spec.device != DeviceType.CPU)
            or (spec.const and not node.meta.get("weight_has_gradient", False))
        )

    def _planned(self, spec: TensorSpec, lifetime: Lifetime) -> "_PlannedSpec":
        """The stand-in for `spec`, as it is before planning."""
        planned = self._stand_ins.get(id(spec))
        if planned is None:
            planned = copy.copy(spec)
            planned.__class__ = _PlannedSpec
            planned.shape = eval_shape_upper_bound(spec.shape)
            planned.realign(self.memory.alignment)
            self._stand_ins[id(spec)] = planned
        planned.lifetime = list(lifetime)
        planned.mem_id, planned.storage_base = spec.mem_id, None
        return planned


class _PlannedSpec(TensorSpec):
    """A TensorSpec whose size is computed once; algorithms ask for it all the time."""

    def realign(self, new_alignment: int) -> int:
        self.alignment = new_alignment
        self._size: int = super().allocated_memory
        return self._size

    @property
    def allocated_memory(self) -> int:
        return self._size
