# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""An alias stands for its root; its readers, and those of in-place results, count.

Replaces the functions of these names in ``executorch.exir.memory_planning``.
"""

import operator
from typing import Any, Iterable, Optional, Sequence, Set

from executorch.exir import memory_planning as upstream
from executorch.exir.tensor import TensorSpec
from executorch_slice.exir.memory import alias_root
from torch.export.exported_program import ExportGraphSignature
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

_upstream_get_node_tensor_specs = upstream.get_node_tensor_specs
_upstream_collect_specs_from_nodes = upstream.collect_specs_from_nodes
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
    they keep its spec alive. (Upstream passes them over.)
    """
    share_inplace_specs(graph_module)
    specs: Set[TensorSpec] = _upstream_update_all_tensors_lifetime(
        graph_module, graph_signature
    )
    last = len(graph_module.graph.nodes) - 1
    for index, node in enumerate(graph_module.graph.nodes):
        for result in filter(is_inplace_result, map(alias_root, node.all_input_nodes)):
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
