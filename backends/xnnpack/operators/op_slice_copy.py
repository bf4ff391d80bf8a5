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
from typing import Any, Dict, Hashable, List, Optional, Tuple

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
from executorch.backends.xnnpack.utils.quant_utils import is_dequant, is_quant
from executorch.backends.xnnpack.utils.utils import get_input_node, PERM_NCHW_TO_NHWC
from executorch.backends.xnnpack.utils.xnnpack_constants import XNN_INVALID_VALUE_ID
from executorch_slice.exir.alias_layout import named_arguments
from torch.fx import Node

# Up to this step, a transpose of single elements beats a slice of single elements.
_MOST_TRANSPOSED = 8
MOST_DIMS = 6  # XNN_MAX_TENSOR_DIMS


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
        # Slices that only slices of another dim read: those take both at once.
        self._deferred: Dict[Node, Dict[int, range]] = {}
        # What a delegate has been given: the result by value, dims and indices.
        self._results: Dict[Hashable, int] = {}

    def define_node(
        self,
        node: Node,
        xnn_graph: XNNGraph,
        vals_to_ids: Dict[Node, int],
        debug_handle: int,
    ) -> None:
        source = get_input_node(node, 0)
        if self._can_wait(node):
            self.define_tensor(source, xnn_graph, vals_to_ids)
            vals_to_ids[node] = vals_to_ids[source]
            self._deferred[node] = dict([_taken(node)])
            return
        taken = dict([*self._deferred.get(source, {}).items(), _taken(node)])
        slices = frozenset(taken.items())
        known = self._results.get((vals_to_ids.get(source), slices))
        stays_inside = not any(u.op == "output" or is_quant(u) for u in node.users)
        if known is not None and stays_inside:
            vals_to_ids[node] = known
            return
        self.define_nodes_tensor_inputs_outputs(node, xnn_graph, vals_to_ids)
        value, result = vals_to_ids[source], vals_to_ids[node]
        self._results[value, slices] = result
        _Composer(xnn_graph, debug_handle).slice(value, taken, result)

    def _can_wait(self, node: Node) -> bool:
        """Whether each reader of `node` can take both slices of its source at once."""
        source = get_input_node(node, 0)
        shape = list(source.meta["val"].shape)
        if is_dequant(source) or source in self._deferred or len(shape) == MOST_DIMS:
            return False
        if _is_channels_last(node):
            shape = [shape[i] for i in PERM_NCHW_TO_NHWC]
        dim, taken = _taken(node)
        if not _is_of_groups(shape[dim], taken):
            return False
        for reader in node.users:
            if reader.op != "call_function" or reader.target != node.target:
                return False
            other, also = _taken(reader)
            inner = prod(shape[max(dim, other) + 1 :])
            if other == dim or inner == 1 or not _is_of_groups(shape[other], also):
                return False
        return True


def _is_strided(taken: range) -> bool:
    return taken.step > 1 and len(taken) > 1


def _is_of_groups(size: int, taken: range) -> bool:
    """Whether a dim of `size` is whole groups of which `taken` has one place each."""
    return _is_strided(taken) and size % taken.step == 0


def _is_channels_last(node: Node) -> bool:
    return bool(node.meta.get(ChannelsLastTaggedReshapePass.XNN_NHWC_NODE, False))


def _taken(node: Node) -> Tuple[int, range]:
    """The dim of the serialized value that `node` slices, and what it takes."""
    dim, taken = slice_bounds(node)
    return PERM_NCHW_TO_NHWC.index(dim) if _is_channels_last(node) else dim, taken


class _Composer:
    """Adds nodes to a serialized graph; what it holds already is not added again."""

    def __init__(self, xnn_graph: XNNGraph, debug_handle: int) -> None:
        self.xnn_graph = xnn_graph
        self.debug_handle = debug_handle

    def shape(self, value: int) -> List[int]:
        return list(get_tensor_value(self.xnn_graph.xvalues[value]).dims)

    def slice(self, value: int, taken: Dict[int, range], result: int) -> None:
        """Takes the indices `taken` of each dim; more than one dim of whole groups."""
        if len(taken) == 1:
            ((dim, indices),) = taken.items()
            if not _is_strided(indices):
                offsets = [0] * len(self.shape(value))
                offsets[dim] = indices.start
                self._slice(value, offsets, self.shape(result), result)
                return
            value, first = self._window(value, dim, indices)
            stop = first + len(indices) * indices.step
            taken = {dim: range(first, stop, indices.step)}
        inner = self.shape(value)[max(taken) + 1 :]
        if prod(inner) == 1:
            self._slice_elements(value, *taken.popitem(), result)
        else:
            self._slice_rows(value, taken, result)

    def _slice_rows(self, value: int, taken: Dict[int, range], result: int) -> None:
        """Makes each dim one of groups, and the place in a group part of the next."""
        places: List[Tuple[int, int, int]] = []  # size, offset and elements taken
        step, phase = 1, 0  # of the dim before
        for dim, size in enumerate(self.shape(value)):
            if dim in taken:
                if step > 1:
                    places.append((step, phase, 1))
                step = taken[dim].step
                group, phase = divmod(taken[dim].start, step)
                places.append((size // step, group, len(taken[dim])))
            else:
                places.append((step * size, phase * size, size))
                step, phase = 1, 0
        folded, offsets, sizes = map(list, zip(*places))
        rows = self._reshape(value, folded)
        if sizes == self.shape(result):
            self._slice(rows, offsets, sizes, result)
        else:
            picked = self._slice(rows, offsets, sizes)
            self._reshape(picked, self.shape(result), result)

    def _slice_elements(self, value: int, dim: int, taken: range, result: int) -> None:
        """Takes single elements, of the last dim that has more than one."""
        shape, step = self.shape(value), taken.step
        group, phase = divmod(taken.start, step)
        outer, groups = prod(shape[:dim]), shape[dim] // step
        if step <= _MOST_TRANSPOSED and groups == len(taken):
            rows = self._reshape(value, [outer * groups, step])
            columns = self._transpose(rows)
            picked = self._slice(columns, [phase, 0], [1, outer * groups])
        else:
            rows = self._reshape(value, [outer, groups, step])
            picked = self._slice(rows, [0, group, phase], [outer, len(taken), 1])
        self._reshape(picked, self.shape(result), result)

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
        window = value if size == shape else self._slice(value, offsets, size)
        return self._padded(window, dim, length - size[dim]), phase

    def _slice(
        self,
        value: int,
        offsets: List[int],
        sizes: List[int],
        result: Optional[int] = None,
    ) -> int:
        fields = {"num_dims": len(sizes), "offsets": offsets, "sizes": sizes}
        return self._emit(XNNStaticSlice, fields, value, sizes, result)

    def _reshape(
        self, value: int, shape: List[int], result: Optional[int] = None
    ) -> int:
        fields = {"num_dims": len(shape), "new_shape": shape}
        return self._emit(XNNStaticReshape, fields, value, shape, result)

    def _transpose(self, value: int) -> int:
        fields = {"num_dims": 2, "perm": [1, 0]}
        return self._emit(XNNStaticTranspose, fields, value, self.shape(value)[::-1])

    def _padded(self, value: int, dim: int, count: int) -> int:
        if count == 0:
            return value
        shape = self.shape(value)
        after = [0] * len(shape)
        after[dim] = count
        shape[dim] += count
        fields = {
            "pre_paddings": [0] * len(shape),
            "post_paddings": after,
            "padding_value": 0.0,
        }
        return self._emit(XNNStaticConstantPad, fields, value, shape)

    def _emit(
        self,
        kind: Any,
        fields: Dict[str, Any],
        value: int,
        shape: List[int],
        result: Optional[int] = None,
    ) -> int:
        """Adds a node that computes `result` of `value`; without one, a value inside.

        Returns:
            The id of the result; of one that is there already, if it is the same.
        """
        node = kind(input_id=value, output_id=result, flags=0, **fields)
        if result is None:
            for known in (x.xnode_union for x in self.xnn_graph.xnodes):
                if isinstance(known, kind):
                    node.output_id = known.output_id
                    if node == known:
                        return int(node.output_id)
            node.output_id = self._new_value(value, shape)
        self.xnn_graph.xnodes.append(
            XNode(xnode_union=node, debug_handle=self.debug_handle)
        )
        return int(node.output_id)

    def _new_value(self, like: int, shape: List[int]) -> int:
        """A value inside the delegate, of the dtype and quantization of `like`."""
        known = self.xnn_graph.xvalues[like].xvalue_union
        value = len(self.xnn_graph.xvalues)
        tensor = XNNTensorValue(
            datatype=get_tensor_value(self.xnn_graph.xvalues[like]).datatype,
            num_dims=len(shape),
            dims=shape,
            constant_buffer_idx=0,
            external_id=XNN_INVALID_VALUE_ID,
            flags=0,
            id_out=value,
        )
        is_plain = isinstance(known, XNNTensorValue)
        union = tensor if is_plain else replace(known, tensor_value=tensor)
        self.xnn_graph.xvalues.append(XValue(xvalue_union=union))
        return value
