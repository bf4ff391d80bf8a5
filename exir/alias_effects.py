# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Which nodes share memory by their ops' schemas, and where memory is written."""

import operator
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

import torch
from executorch.exir import memory
from executorch.exir.control_flow import while_loop as exir_while_loop
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.tensor import TensorSpec
from executorch_slice.exir.alias_layout import named_arguments, overload_of
from executorch_slice.exir.memory import ALIAS_OPS
from torch.fx import GraphModule, Node

CONTROL_FLOW = frozenset(
    {
        exir_while_loop,
        torch.ops.higher_order.cond,
        torch.ops.higher_order.map_impl,
        torch.ops.higher_order.scan,
        torch.ops.higher_order.while_loop,
    }
)
# Set in the meta of a `torch.cond` whose branches compute each of their results, so
# that memory planning can place those where the caller expects them.
OWNS_RESULTS = "owns_results"

_READ_ONLY = ALIAS_OPS | {
    executorch_call_delegate,
    memory.alloc,
    memory.free,
    operator.getitem,
}


class MemoryEffects:
    """Joins and writes of one graph, before any copy in it becomes an alias.

    Attributes:
        order: index of each node in its graph.
        joins: for a node whose result lies in an argument's memory (in-place ops,
            `_share_alloc_with_arg_idx`, schemas that return `Tensor(a)`), that
            argument.
        roots: for each node, the node at the end of its joins.
        writes: for each root that is written, the indices of the writing nodes.
    """

    def __init__(self, module: GraphModule) -> None:
        self.order: Dict[Node, int] = {n: i for i, n in enumerate(module.graph.nodes)}
        self.joins: Dict[Node, Node] = {}
        self.roots: Dict[Node, Node] = {}
        self.writes: Dict[Node, List[int]] = {}
        for node, index in self.order.items():
            base = _joined_argument(node)
            if base is not None:
                self.joins[node] = base
            self.roots[node] = node if base is None else self.roots[base]
            for written in _written_arguments(module, node):
                indices = self.writes.setdefault(self.roots[written], [])
                if not indices or indices[-1] != index:
                    indices.append(index)

    def writes_inputs(self) -> bool:
        """Whether a placeholder of the graph is written."""
        return any(root.op == "placeholder" for root in self.writes)


def control_flow_modules(module: GraphModule, node: Node) -> List[GraphModule]:
    """The branches or bodies that a control flow `node` of `module` runs."""
    names = [arg.target for arg in node.all_input_nodes if arg.op == "get_attr"]
    modules = [getattr(module, str(name), None) for name in names]
    return [m for m in modules if isinstance(m, GraphModule)]


def scanned_rows(module: GraphModule) -> Set[Node]:
    """The placeholders of `map` and `scan` bodies that hold the row of a round.

    Each is planned with its body, and a kernel copies the row there.
    """
    rows: Set[Node] = set()
    for target in (torch.ops.higher_order.map_impl, torch.ops.higher_order.scan):
        for node in module.graph.find_nodes(op="call_function", target=target):
            (body,) = control_flow_modules(module, node)
            *carried, scanned, _ = node.args[1:]
            first = len(carried[0]) if carried else 0
            inputs = body.graph.find_nodes(op="placeholder")
            rows.update(list(inputs)[first : first + len(scanned)])
    return rows


def graph_outputs(module: GraphModule) -> List[Any]:
    """What a graph returns, a single result as a list of one."""
    (outputs,) = module.graph.output_node().args
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def annotated_argument(node: Node) -> Optional[Node]:
    """The argument that `node` is annotated to share the allocation of."""
    index = node.meta.get("_share_alloc_with_arg_idx")
    value = node.args[index] if isinstance(index, int) else None
    return value if isinstance(value, Node) else None


def _arguments(node: Node) -> Iterator[Tuple[torch.Argument, Any]]:
    """Pairs each argument of the schema with its value, as far as it is given."""
    op, given = overload_of(node), named_arguments(node)
    for argument in op._schema.arguments if op is not None else ():
        if argument.name in given:
            yield argument, given[argument.name]


def _shared_argument(node: Node, index: int) -> Optional[Node]:
    """The argument whose memory holds result `index` of `node`, by its schema."""
    op = overload_of(node)
    returns = op._schema.returns if op is not None else []
    result = returns[index].alias_info if index < len(returns) else None
    if result is None:
        return None
    for argument, value in _arguments(node):
        shared = argument.alias_info
        if (
            shared is not None
            and shared.before_set & result.before_set
            and isinstance(value, Node)
        ):
            return value
    return None


def _joined_argument(node: Node) -> Optional[Node]:
    if node.target is operator.getitem:
        producer: Any = node.args[0]
        index: Any = node.args[1]
        return _shared_argument(producer, index)
    annotated = annotated_argument(node)
    return annotated if annotated is not None else _shared_argument(node, 0)


def _written_arguments(module: GraphModule, node: Node) -> List[Node]:
    if node.op != "call_function":
        return []
    if overload_of(node) is not None:
        written = [
            value
            for argument, value in _arguments(node)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        written.append(annotated_argument(node))
        leaves = torch.utils._pytree.tree_leaves(written)
        return [leaf for leaf in leaves if isinstance(leaf, Node)]
    if node.target in CONTROL_FLOW:
        modules = control_flow_modules(module, node)
        if not any(MemoryEffects(m).writes_inputs() for m in modules):
            return []
    elif node.target in _READ_ONLY:
        return []
    return [
        arg
        for arg in node.all_input_nodes
        if isinstance(arg.meta.get("spec"), TensorSpec)
    ]
