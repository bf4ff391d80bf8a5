# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""An alias stands for its root; a result of `torch.cond` lies where it is expected.

Replaces the functions of these names in ``executorch.exir.memory_planning``.
"""

import operator
from itertools import zip_longest
from typing import Any, Dict, Iterable, List, Optional, Sequence, Set

from executorch.exir import memory_planning as upstream
from executorch.exir.error import internal_assert
from executorch.exir.tensor import TensorSpec
from executorch_slice.exir.alias_effects import (
    control_flow_modules,
    graph_outputs,
    OWNS_RESULTS,
)
from executorch_slice.exir.memory import alias_root
from torch.export.exported_program import ExportGraphSignature
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

_upstream_get_node_tensor_specs = upstream.get_node_tensor_specs
_upstream_collect_specs_from_nodes = upstream.collect_specs_from_nodes
_upstream_handle_submodule = upstream._handle_submodule
_upstream_apply_algo = upstream.apply_algo
_upstream_update_all_tensors_lifetime = upstream.update_all_tensors_lifetime


def get_node_tensor_specs(node: Node) -> Sequence[TensorSpec]:
    """The specs that `node` needs memory for; an alias needs that of its root."""
    specs: Sequence[TensorSpec] = _upstream_get_node_tensor_specs(alias_root(node))
    return specs


def update_all_tensors_lifetime(
    graph_module: GraphModule, graph_signature: Optional[ExportGraphSignature] = None
) -> Set[TensorSpec]:
    """Sets the lifetime, first and last node index, of each spec in the graph.

    Readers of an in-place result read the memory of the argument that was written:
    they keep its spec alive. (Upstream passes them over.) One that is returned lives
    until the last kernel has run; at the output itself, its former spec may have the
    same bytes.
    """
    share_inplace_specs(graph_module)
    specs: Set[TensorSpec] = _upstream_update_all_tensors_lifetime(
        graph_module, graph_signature
    )
    nodes = list(graph_module.graph.nodes)
    results = {node for node in nodes if is_inplace_result(node)}
    if not results:
        return specs
    last = len(nodes) - 1
    for index, node in enumerate(nodes):
        index -= node.op == "output"
        for result in filter(
            results.__contains__, map(alias_root, node.all_input_nodes)
        ):
            for spec in tree_leaves(result.meta.get("spec")):
                if isinstance(spec, TensorSpec):
                    upstream.update_tensor_lifetime(
                        node, spec, index, last, graph_signature
                    )
    return specs


def share_inplace_specs(graph_module: GraphModule) -> None:
    """Gives each in-place result the spec of the argument that it is written to."""
    for node in graph_module.graph.nodes:
        if upstream._is_inplace_node(node):
            if node.meta.get("spec") is not None:
                upstream._alias_inplace_result_specs(node)
        elif node.target is operator.getitem:
            producer: Any = node.args[0]
            if upstream._is_inplace_node(producer):
                node.meta["spec"] = producer.meta["spec"][node.args[1]]


def is_inplace_result(node: Node) -> bool:
    """Whether `node` holds what an in-place op returns: an argument, written."""
    producer: Any = node.args[0] if node.target is operator.getitem else node
    is_inplace: bool = upstream._is_inplace_node(producer)
    return is_inplace


def collect_specs_from_nodes(
    nodes: Iterable[Node], *args: Any, **kwargs: Any
) -> Iterable[TensorSpec]:
    """Upstream's, for a graph in which each alias node is the root it stands for."""
    specs: Iterable[TensorSpec] = _upstream_collect_specs_from_nodes(
        [alias_root(node) for node in nodes], *args, **kwargs
    )
    return specs


def _handle_submodule(
    algo: Any,
    parent_graph_module: GraphModule,
    alignment: int,
    submodule_node: Node,
    graph_signature: Optional[ExportGraphSignature] = None,
    alloc_graph_input: bool = False,
) -> List[int]:
    """Plans a branch; its results are placed by `apply_algo` of the caller's graph."""
    if not any(user.meta.get(OWNS_RESULTS, False) for user in submodule_node.users):
        sizes: List[int] = _upstream_handle_submodule(
            algo,
            parent_graph_module,
            alignment,
            submodule_node,
            graph_signature,
            alloc_graph_input,
        )
        return sizes
    branch = getattr(parent_graph_module, str(submodule_node.target))
    sizes = apply_algo(
        algo,
        branch,
        alignment,
        graph_signature,
        alloc_graph_input=alloc_graph_input,
        alloc_graph_output=False,
    )
    branch.meta["non_const_buffer_sizes"] = sizes
    return sizes


def apply_algo(
    algo: Any, graph_module: GraphModule, *args: Any, **kwargs: Any
) -> List[int]:
    """Upstream's, then each branch result goes into the slot of its cond's result.

    Upstream plans a branch's results among its own bytes, which the branches of the
    next cond overwrite while they may still be read. And it forgets what branches
    reserve in an arena where the graph itself has nothing.
    """
    planned: List[int] = _upstream_apply_algo(algo, graph_module, *args, **kwargs)
    sizes = with_reserved(
        planned,
        [
            branch.meta.get("non_const_buffer_sizes", [])
            for node in graph_module.graph.nodes
            for branch in control_flow_modules(graph_module, node)
        ],
    )
    graph_module.meta["non_const_buffer_sizes"] = sizes
    _place_branch_results(graph_module)
    return sizes


def with_reserved(sizes: List[int], reserved: Iterable[List[int]]) -> List[int]:
    """Bytes of each arena, at least as many as any of `reserved` has there."""
    arenas = zip_longest(sizes, *reserved, fillvalue=0)
    return [max(sizes_of_arena) for sizes_of_arena in arenas]


def _place_branch_results(graph_module: GraphModule) -> None:
    for cond in graph_module.graph.nodes:
        if not cond.meta.get(OWNS_RESULTS, False):
            continue
        for branch in control_flow_modules(graph_module, cond):
            for slot, node in zip(cond.meta["spec"], graph_outputs(branch)):
                if isinstance(slot, TensorSpec) and slot.mem_offset is not None:
                    _place(node, slot)
            _place_branch_results(branch)


def _place(node: Node, slot: TensorSpec) -> None:
    spec = node.meta["spec"]
    internal_assert(
        spec.nbytes() <= slot.nbytes(),
        f"{node.name} has {spec.nbytes()} bytes, but the result of its cond has "
        f"{slot.nbytes()}",
    )
    spec.mem_id, spec.mem_obj_id = slot.mem_id, slot.mem_obj_id
    spec.mem_offset = slot.mem_offset


class _InUse:
    """When the tensors in a shared object are alive: one bit for each node index.

    Attributes:
        ever: at which index any of them is.
        by_end: at which index those are that end at a byte of the object.
        counted: how many allocations are in the above.
    """

    def __init__(self) -> None:
        self.ever = self.counted = 0
        self.by_end: Dict[int, int] = {}


def _does_not_overlap(sobj: upstream.SharedObject, spec: TensorSpec) -> bool:
    """Upstream's answer: whether no tensor in `sobj` is alive together with `spec`."""
    return not _in_use(sobj).ever & _alive(spec)


def _find_max_overlapping_allocations_offset(
    sobj: upstream.SharedObject, spec: TensorSpec
) -> int:
    """Upstream's answer: where those tensors in `sobj` end that live with `spec`."""
    alive, ends = _alive(spec), _in_use(sobj).by_end
    return max((end for end, others in ends.items() if alive & others), default=0)


def _in_use(sobj: upstream.SharedObject) -> _InUse:
    """Kept with `sobj`. (Upstream asks each tensor in turn, every time.)"""
    in_use: Optional[_InUse] = getattr(sobj, "in_use", None)
    if in_use is None:
        in_use = sobj.in_use = _InUse()
    for allocation in sobj.allocations[in_use.counted :]:
        end = allocation.offset + allocation.spec.allocated_memory
        alive = _alive(allocation.spec)
        in_use.by_end[end] = in_use.by_end.get(end, 0) | alive
        in_use.ever |= alive
        in_use.counted += 1
    return in_use


def _alive(spec: TensorSpec) -> int:
    first, last = spec.lifetime
    return ((1 << (last - first + 1)) - 1) << first
