# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""The dim order of static strides, without a class made for each call."""

from typing import Any, Tuple

from executorch.exir import tensor as upstream

_upstream_dim_order_from_stride = upstream.dim_order_from_stride


def dim_order_from_stride(stride: Any) -> Tuple[Any, ...]:
    """Dims from the largest stride to the smallest; equal ones stay in order.

    Upstream compares instances of a class that it makes at each call, to ask about
    symbolic strides; each spec costs a tenth of a millisecond so. It is asked where
    a stride is symbolic, or zero, which it refuses.

    Args:
        stride: one stride, in elements, for each dim.

    Raises:
        RuntimeError: as upstream, where a stride is zero.
    """
    if all(type(s) is int and s > 0 for s in stride):
        return tuple(sorted(range(len(stride)), key=stride.__getitem__, reverse=True))
    order: Tuple[Any, ...] = _upstream_dim_order_from_stride(stride)
    return order
