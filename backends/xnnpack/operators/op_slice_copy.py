# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Slices of any step in an XNNPACK delegate, composed of ops that runtimes have.

XNNPACK's own slice takes neighbours only. Folding a dim into groups of `step` elements
turns every `step`-th element into the same place of neighbouring groups.
"""

from dataclasses import replace
from math import prod
from typing import Any, Dict, List, Tuple

from executorch.backends.xnnpack._passes.channels_last_tagged_reshape_pass import (
    ChannelsLastTaggedReshapePass,
)
from executorch.backends.xnnpack.operators.node_visitor import (
    get_tensor_value,
    NodeVisitor,
)
from executorch.backends.xnnpack.serialization.xnnpack_graph_schema import (
    XNNGraph,
    XNNStaticConstantPad,
    XNNStaticReshape,
    XNNStaticSlice,
    XNNStaticTranspose,
    XNNTensorValue,
    XNode,
    XValue,
)
from executorch.backends.xnnpack.utils.quant_utils import is_quant
from executorch.backends.xnnpack.utils.utils import get_input_node, PERM_NCHW_TO_NHWC
from executorch.backends.xnnpack.utils.xnnpack_constants import XNN_INVALID_VALUE_ID
from executorch_slice.exir.alias_layout import named_arguments
from torch.fx import Node

# Up to this step, a transpose of single elements beats a slice of single elements.
_MOST_TRANSPOSED = 8


def slice_bounds(node: Node) -> Tuple[int, range]:
    """The dim of a static `slice_copy`, and the indices that it takes of it.

    Bounds are clamped as ``aten::slice`` clamps them, which is as Python does.
    """
    given = named_arguments(node)
    shape = get_input_node(node, 0).meta["val"].shape
    dim = given.get("dim", 0) % len(shape)
    bounds = slice(given.get("start"), given.get("end"), given.get("step", 1))
    return dim, range(*bounds.indices(shape[dim]))


class SliceCopyVisitor(NodeVisitor):
    """Serializes slices of any step; stands in for upstream's visitor."""

    target = "aten.slice_copy.Tensor"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # What a delegate has been given: the result by value, dim and indices.
        self._results: Dict[Tuple[int, int, range], int] = {}

    def define_node(
        self,
        node: Node,
        xnn_graph: XNNGraph,
        vals_to_ids: Dict[Node, int],
        debug_handle: int,
    ) -> None:
        source = get_input_node(node, 0)
        dim, taken = slice_bounds(node)
        if node.meta.get(ChannelsLastTaggedReshapePass.XNN_NHWC_NODE, False):
            dim = PERM_NCHW_TO_NHWC.index(dim)
        known = self._results.get((vals_to_ids.get(source, -1), dim, taken))
        stays_inside = not any(u.op == "output" or is_quant(u) for u in node.users)
        if known is not None and stays_inside:
            vals_to_ids[node] = known
            return
        self.define_nodes_tensor_inputs_outputs(node, xnn_graph, vals_to_ids)
        value, result = vals_to_ids[source], vals_to_ids[node]
        self._results[value, dim, taken] = result
        composer = _Composer(xnn_graph, debug_handle)
        if taken.step == 1 or len(taken) == 1:
            offsets = [0] * len(composer.shape(value))
            offsets[dim] = taken.start
            composer.slice(value, offsets, result)
        else:
            composer.strided_slice(value, dim, taken, result)


class _Composer:
    """Adds nodes to a serialized graph; what it holds already is not added again."""

    def __init__(self, xnn_graph: XNNGraph, debug_handle: int) -> None:
        self.xnn_graph = xnn_graph
        self.debug_handle = debug_handle

    def shape(self, value: int) -> List[int]:
        return list(get_tensor_value(self.xnn_graph.xvalues[value]).dims)

    def strided_slice(self, value: int, dim: int, taken: range, result: int) -> None:
        """Takes the indices `taken`, at least two of a step above 1, of `dim`."""
        step = taken.step
        window, first = self._window(value, dim, taken)
        group, phase = divmod(first, step)
        shape = self.shape(window)
        outer, groups = shape[:dim], shape[dim] // step
        inner = shape[dim + 1 :]
        if prod(inner) > 1:
            folded = [*outer, groups, step * inner[0], *inner[1:]]
            offsets = [0] * len(shape)
            offsets[dim : dim + 2] = group, phase * inner[0]
            self.slice(self._reshape(window, folded), offsets, result)
            return
        if step <= _MOST_TRANSPOSED and groups == len(taken):
            rows = self._reshape(window, [prod(outer) * groups, step])
            columns = self._transpose(rows)
            picked = self._part(columns, [phase, 0], [1, prod(outer) * groups])
        else:
            rows = self._reshape(window, [prod(outer), groups, step])
            picked = self._part(rows, [0, group, phase], [prod(outer), len(taken), 1])
        self._add(self._reshape_node(picked, self.shape(result), result))

    def _window(self, value: int, dim: int, taken: range) -> Tuple[int, int]:
        """Whole groups of `dim` that hold all of `taken`, and the first of those.

        All of `dim` where that is whole groups, else as little as will do: the group
        of the first starts as late as the end of `dim` allows. Where no start does,
        the last group is filled up with values that are not taken.
        """
        shape, step, length = self.shape(value), taken.step, len(taken) * taken.step
        if shape[dim] % step == 0:
            return value, taken.start
        beyond = max(0, taken.start + length - shape[dim])
        before = min(taken.start, step - 1)
        phase = beyond if beyond <= before else before
        offsets, size = [0] * len(shape), list(shape)
        offsets[dim] = taken.start - phase
        size[dim] = min(length, shape[dim] - offsets[dim])
        window = value if size == shape else self._part(value, offsets, size)
        return self._padded(window, dim, length - size[dim]), phase

    def slice(self, value: int, offsets: List[int], result: int) -> None:
        self._add(self._slice_node(value, offsets, self.shape(result), result))

    def _part(self, value: int, offsets: List[int], size: List[int]) -> int:
        return self._define(self._slice_node(value, offsets, size), size)

    def _slice_node(
        self,
        value: int,
        offsets: List[int],
        size: List[int],
        result: int = XNN_INVALID_VALUE_ID,
    ) -> XNNStaticSlice:
        return XNNStaticSlice(
            num_dims=len(size),
            offsets=offsets,
            sizes=size,
            input_id=value,
            output_id=result,
            flags=0,
        )

    def _reshape(self, value: int, shape: List[int]) -> int:
        return self._define(self._reshape_node(value, shape), shape)

    def _reshape_node(
        self, value: int, shape: List[int], result: int = XNN_INVALID_VALUE_ID
    ) -> XNNStaticReshape:
        return XNNStaticReshape(
            num_dims=len(shape),
            new_shape=shape,
            input_id=value,
            output_id=result,
            flags=0,
        )

    def _transpose(self, value: int) -> int:
        node = XNNStaticTranspose(
            num_dims=2,
            perm=[1, 0],
            input_id=value,
            output_id=XNN_INVALID_VALUE_ID,
            flags=0,
        )
        return self._define(node, self.shape(value)[::-1])

    def _padded(self, value: int, dim: int, count: int) -> int:
        if count == 0:
            return value
        shape = self.shape(value)
        after = [0] * len(shape)
        after[dim] = count
        shape[dim] += count
        node = XNNStaticConstantPad(
            pre_paddings=[0] * len(shape),
            post_paddings=after,
            padding_value=0.0,
            input_id=value,
            output_id=XNN_INVALID_VALUE_ID,
            flags=0,
        )
        return self._define(node, shape)

    def _define(self, node: Any, shape: List[int]) -> int:
        """The value that `node` computes, of the dtype of its input."""
        for known in self.xnn_graph.xnodes:
            union = known.xnode_union
            if type(union) is type(node):
                if replace(node, output_id=union.output_id) == union:
                    return int(union.output_id)
        node.output_id = len(self.xnn_graph.xvalues)
        like = self.xnn_graph.xvalues[node.input_id].xvalue_union
        tensor = XNNTensorValue(
            datatype=get_tensor_value(self.xnn_graph.xvalues[node.input_id]).datatype,
            num_dims=len(shape),
            dims=shape,
            constant_buffer_idx=0,
            external_id=XNN_INVALID_VALUE_ID,
            flags=0,
            id_out=node.output_id,
        )
        is_plain = isinstance(like, XNNTensorValue)
        union = tensor if is_plain else replace(like, tensor_value=tensor)
        self.xnn_graph.xvalues.append(XValue(xvalue_union=union))
        self._add(node)
        return int(node.output_id)

    def _add(self, node: Any) -> None:
        self.xnn_graph.xnodes.append(
            XNode(xnode_union=node, debug_handle=self.debug_handle)
        )
