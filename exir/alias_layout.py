# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Where a copy's result lies in its base: ATen's view ops answer, on meta tensors."""

import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Dict, List, Optional, Tuple

import torch
from executorch.exir.operator.convert import unwrap_op_overload
from executorch.exir.sym_util import eval_shape_upper_bound
from executorch.exir.tensor import (
    num_bytes_from_shape_and_dtype,
    stride_from_dim_order,
    TensorSpec,
)
from torch.fx import Node

# ATen names without "_copy".
SLICE_FAMILY = frozenset({"narrow", "select", "slice"})
PIECE_FAMILY = frozenset({"chunk", "split", "split_with_sizes", "unbind"})
VIEW_FAMILY = frozenset({"view"})

# ATen has a view op of the same name and arguments, which lays the elements out.
_VIEWED = (
    SLICE_FAMILY
    | PIECE_FAMILY
    | {"expand", "permute", "squeeze", "t", "transpose", "unsqueeze"}
)
# A result with as many elements as the base has them in the same order.
CONVERSIONS = frozenset(
    {"_clone_dim_order", "_to", "_to_dim_order", "clone", "contiguous"}
)
_ORDERED = (
    CONVERSIONS
    | VIEW_FAMILY
    | {
        "_reshape",
        "_unsafe_view",
        "alias",
        "detach",
        "lift",
        "lift_fresh",
        "repeat",
        "reshape",
    }
)


@dataclass(frozen=True)
class Layout:
    """A tensor as ATen's view op lays it out in its base.

    Attributes:
        size: elements in each dim.
        stride: elements between neighbours in each dim.
        byte_offset: bytes from the start of the base.
        nbytes: bytes of the dense tensor of this size.
    """

    size: Tuple[int, ...]
    stride: Tuple[int, ...]
    byte_offset: int
    nbytes: int

    def is_dense_as(self, spec: TensorSpec) -> bool:
        """Whether these bytes, as they lie, are the tensor that `spec` describes.

        Strides of dims with one element and of empty tensors address nothing.
        """
        if list(self.size) != list(spec.shape):
            return False
        dense = stride_from_dim_order(list(self.size), list(spec.dim_order))
        return self.nbytes == 0 or all(
            size == 1 or stride == want
            for size, stride, want in zip(self.size, self.stride, dense)
        )


def overload_of(node: Node) -> Optional[torch._ops.OpOverload]:
    """The ATen or custom overload behind an aten, edge or backend spelling."""
    try:
        return unwrap_op_overload(node.target) if node.op == "call_function" else None
    except TypeError:
        return None


def named_arguments(node: Node) -> Dict[str, Any]:
    """Arguments of `node` by their names in its schema, as far as they are given."""
    op = overload_of(node)
    names = [a.name for a in op._schema.arguments] if op is not None else []
    return {**dict(zip(names, node.args)), **node.kwargs}


@lru_cache(maxsize=None)
def family_of(op: Optional[torch._ops.OpOverload]) -> Optional[str]:
    """The name of `op` without "_copy" if it belongs to a family, else None."""
    if (
        op is None
        or op.namespace not in ("aten", "dim_order_ops")
        or any(arg.is_out for arg in op._schema.arguments)
    ):
        return None
    name = op._schema.name.partition("::")[2].removesuffix("_copy")
    return name if name in _VIEWED | _ORDERED else None


def is_dense_tensor(spec: object) -> bool:
    """Whether `spec` describes one strided tensor."""
    return (
        isinstance(spec, TensorSpec)
        and not spec.is_sparse
        and spec.layout == torch.strided
    )


def is_contiguous(spec: TensorSpec) -> bool:
    return list(spec.dim_order) == list(range(len(spec.shape)))


def upper_bound_nbytes(spec: object) -> int:
    """Bytes of a tensor at the upper bound of its sizes; 0 where it has none."""
    if not isinstance(spec, TensorSpec):
        return 0
    shape = eval_shape_upper_bound(spec.shape)
    if not all(isinstance(size, int) for size in shape):
        return 0
    return num_bytes_from_shape_and_dtype(torch.Size(shape), spec.dtype)


def has_static_arguments(node: Node) -> bool:
    """Whether all arguments of `node` but the base are known at lowering."""
    flat = torch.utils._pytree.tree_leaves([node.args[1:], node.kwargs])
    return not any(isinstance(leaf, (Node, torch.SymInt)) for leaf in flat)


def is_dense_at_run_time(node: Node, base: TensorSpec) -> bool:
    """Whether a slice or select whose sizes or place are dynamic lies together.

    A symbolic size counts as one that may be greater than 1.

    Args:
        node: a call of an op of one of the families, with the spec of its result.
        base: the spec of args[0].
    """
    given, spec = named_arguments(node), node.meta["spec"]
    family, dim = family_of(overload_of(node)), given.get("dim", 0)
    order = [int(d) for d in base.dim_order]
    dim += len(order) if dim < 0 else 0
    if family == "select":
        kept = [d - (d > dim) for d in order if d != dim]
    elif family == "slice":
        kept = order
        if not _takes_neighbours(given, spec.shape[dim]):
            return False
    else:
        return False
    is_bound = not (base.is_dynamic_unbound_tensor or spec.is_dynamic_unbound_tensor)
    takes_all = family == "slice" and _takes_all(given)
    outer = [] if takes_all else order[: order.index(dim)]
    return (
        is_bound
        and kept == list(spec.dim_order)
        and all(_is_one(base.shape[d]) for d in outer)
    )


def _takes_neighbours(given: Dict[str, Any], size: Any) -> bool:
    step = given.get("step", 1)
    return (isinstance(step, int) and step == 1) or _is_one(size)


def _takes_all(given: Dict[str, Any]) -> bool:
    """Whether the bounds of a slice are those of its dim, whatever size that has."""
    start, end = given.get("start"), given.get("end")
    is_open = end is None or (isinstance(end, int) and end >= sys.maxsize)
    return (start is None or (isinstance(start, int) and start == 0)) and is_open


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


def view_layouts(node: Node, base: TensorSpec) -> List[Layout]:
    """Runs the view twin of `node` on a meta tensor that has the layout of `base`.

    Args:
        node: a call with static arguments of an op of one of the families, args[0]
            being the base, with the spec of its result.
        base: a static spec, the layout of args[0].

    Returns:
        A layout for each result; none where ATen has no such view of these bytes.
    """
    op = overload_of(node)
    family = family_of(op)
    if op is None or family is None:
        return []
    stride = stride_from_dim_order(list(base.shape), list(base.dim_order))
    meta = torch.empty_strided(base.shape, stride, dtype=base.dtype, device="meta")
    try:
        if family in _ORDERED:
            return [_layout_of(meta.view(list(node.meta["spec"].shape)))]
        twin = getattr(getattr(torch.ops.aten, family), op._overloadname)
        views = twin(meta, *node.args[1:], **node.kwargs)
    except RuntimeError:  # ATen: these bytes cannot be viewed so
        return []
    views = [views] if isinstance(views, torch.Tensor) else views
    return [_layout_of(view) for view in views]


def _layout_of(view: torch.Tensor) -> Layout:
    nbytes = view.numel() * view.itemsize
    offset = int(view.storage_offset()) * view.itemsize if nbytes else 0
    return Layout(tuple(view.shape), view.stride(), offset, nbytes)
