# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Spells views in ops that the Edge verifier and AOTInductor's C shim have."""

import operator

from executorch.exir.dialects._ops import ops as exir_ops
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import Argument
from torch.fx.passes.infra.pass_base import PassBase, PassResult

aten = exir_ops.edge.aten


class DecomposeViewsPass(PassBase):  # type: ignore[misc]
    """Makes slices of the pieces of a split, and alias_copy of detach_copy.

    ``aten.split`` is a view outside of the Core ATen op set, which the verifier refuses
    after ExecuTorch's ``backends/aoti/passes/replace_view_copy_with_view.py`` has put
    it in the place of ``split_copy``. ``aten.detach_copy`` has no C shim. Nodes keep
    their names and values, so that the graph signature stays right.
    """

    def call(self, graph_module: GraphModule) -> PassResult:
        graph, modified = graph_module.graph, False
        for node in list(graph.nodes):
            if node.target == aten.split.Tensor:
                _replace_split(graph, node)
            elif node.target == aten.detach_copy.default:
                node.target = aten.alias_copy.default
            else:
                continue
            modified = True
        if modified:
            graph_module.recompile()
        return PassResult(graph_module, modified)


def _replace_split(graph: Graph, split: Node) -> None:
    base, size, *dim = split.args
    for piece in list(split.users):  # each a getitem
        index = piece.args[1]
        with graph.inserting_before(piece):
            start, end = (_times(graph, size, count) for count in (index, index + 1))
        piece.target = aten.slice.Tensor
        piece.args = (base, dim[0] if dim else 0, start, end)
    graph.erase_node(split)


def _times(graph: Graph, size: Argument, count: int) -> Argument:
    """`count * size`, where `size` is an int or the node of a SymInt."""
    if not isinstance(size, Node):
        return size * count
    product = graph.call_function(operator.mul, (size, count))
    product.meta["val"] = size.meta["val"] * count
    return product
