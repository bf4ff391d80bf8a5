# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Copies the views that a method returns, so that they come out contiguous."""

import operator
from collections import Counter
from dataclasses import replace
from typing import Any, List, Optional

import torch
from executorch.exir.dialects._ops import ops as exir_ops
from executorch_slice.backends.aoti.passes.contiguous_copy import CONTIGUOUS_COPY
from executorch_slice.exir.alias_layout import named_arguments, overload_of
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind, TensorArgument
from torch.fx import Node

aten = exir_ops.edge.aten
# What copies became in ExecuTorch's replace_view_copy_with_view.py, and the argument
# that says where in its source the view starts.
VIEWS = {aten.select.int: "index", aten.slice.Tensor: "start"}
# Copies to many results, each of which is a view in the compiled program, too.
PIECES = (aten.split_with_sizes_copy.default, aten.unbind_copy.int)
COPIES = (
    aten.alias_copy.default,
    aten.clone.default,
    exir_ops.edge.dim_order_ops._clone_dim_order.default,
)
CONTIGUOUS = (None, torch.contiguous_format, torch.preserve_format)


class CloneReturnedViewsPass:
    """Gives each returned view memory of its own: contiguous, at storage offset 0.

    A runtime that is handed an output with the strides of its base, or with a storage
    offset, refuses it or copies it through host memory.

    To run after ExecuTorch's ``ReplaceViewCopyWithViewPass`` of AOTI backends and
    :class:`DecomposeViewsPass`. Copies what a method returns to its caller
    (``OutputKind.USER_OUTPUT``) and what is a part of other memory once compiled. Not
    only nodes that are views are: Inductor drops a copy whose result has the strides
    of its source, which makes ``y[1:].reshape(-1)`` a part of `y`. A returned copy
    becomes the one that stays, instead of being copied again.
    """

    requires_exported_program = True

    def __call__(self, exported_program: ExportedProgram) -> None:
        """Changes the graph in place, and the graph signature with it."""
        graph_module = exported_program.graph_module
        output = graph_module.graph.output_node()
        specs = exported_program.graph_signature.output_specs
        returned = list(output.args[0])
        bases = Counter(_links(n)[-1] for n in returned if isinstance(n, Node))
        for position, (node, spec) in enumerate(zip(returned, specs)):
            if spec.kind != OutputKind.USER_OUTPUT or not isinstance(node, Node):
                continue
            op = _copy_op(node, bases)
            if op is None:
                continue
            if node.target in COPIES:
                node.target, node.kwargs = op, {}
                continue
            with graph_module.graph.inserting_before(output):
                copy = graph_module.graph.call_function(op, (node,))
            value = node.meta["val"]
            copy.meta = {**node.meta, "val": value.new_empty(value.shape)}
            returned[position] = copy
            specs[position] = replace(spec, arg=TensorArgument(copy.name))
        output.args = (tuple(returned),)
        graph_module.recompile()


def _copy_op(node: Node, bases: Counter) -> Optional[Any]:
    """The op that makes memory of its own for a returned value; None if it has that.

    Args:
        node: the returned value.
        bases: how many outputs are parts of each base, or are the base.
    """
    *links, base = _links(node)
    if not any(_is_part(link) for link in links):
        return None
    is_alone = base.op == "call_function" and bases[base] == 1
    if is_alone and all(map(_starts_with_source, links)):
        # Inductor may drop this one: strides are all that it has to make right.
        return aten.alias_copy.default if node.target in VIEWS else None
    return CONTIGUOUS_COPY


def _links(node: Node) -> List[Node]:
    """`node`, and what it is a view of in the compiled program, back to the base."""
    links = [node]
    while _is_part(node) or _is_removable_copy(node):
        node = node.args[0]
        links.append(node)
    return links


def _is_part(node: Node) -> bool:
    """Whether `node` may have less elements than its source, or start elsewhere."""
    if node.target is operator.getitem:
        return node.args[0].target in PIECES
    return node.target in VIEWS


def _is_removable_copy(node: Node) -> bool:
    """Whether Inductor drops the copy that `node` makes, if strides are the same."""
    if node.target in COPIES:
        dim_order = node.kwargs.get("dim_order") or ()
        is_contiguous = node.kwargs.get("memory_format") in CONTIGUOUS
        return is_contiguous and list(dim_order) == sorted(dim_order)
    op = overload_of(node)
    return op is not None and torch.Tag.view_copy in op.tags


def _starts_with_source(node: Node) -> bool:
    """Whether the first element of `node` is certainly that of its source."""
    if node.target is operator.getitem:
        return node.args[1] == 0
    start = VIEWS.get(node.target)
    return start is None or named_arguments(node).get(start) in (None, 0)
