# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Alias ops: FX targets that stand beside ``memory.view``.

Each mimics the ATen view op of its name, so that a graph which holds them still
runs in Python. A node with such a target owns no memory: its spec is a
``_ViewSpec``, a byte range of the spec of its root. Or its spec is its own and never
planned: it is placed when the program runs, or is a part of a constant that the program
holds instead of that.
"""

from typing import Any, Optional

import torch
from executorch.exir import memory
from executorch.exir.tensor import TensorSpec


def slice(
    base: torch.Tensor,
    dim: int = 0,
    start: Optional[int] = None,
    end: Optional[int] = None,
    step: int = 1,
) -> torch.Tensor:
    """Mimics ``aten.slice.Tensor``; elides ``slice_copy`` and pieces of a split."""
    return torch.ops.aten.slice.Tensor(base, dim, start, end, step)


def select(base: torch.Tensor, dim: int, index: int) -> torch.Tensor:
    """Mimics ``aten.select.int``; elides ``select_copy`` and pieces of an unbind."""
    return torch.ops.aten.select.int(base, dim, index)


# Each alias op, and the copy that it elides.
COPY_OPS = {
    memory.view: torch.ops.aten.view_copy.default,
    slice: torch.ops.aten.slice_copy.Tensor,
    select: torch.ops.aten.select_copy.int,
}
ALIAS_OPS = frozenset(COPY_OPS)


def is_alias(node: torch.fx.Node) -> bool:
    """Whether `node` owns no memory: it is a view, slice or select of its args[0]."""
    return node.op == "call_function" and node.target in ALIAS_OPS


def alias_root(node: torch.fx.Node) -> torch.fx.Node:
    """The node whose memory `node` stands for: `node` itself unless it is an alias."""
    while is_alias(node):
        base: Any = node.args[0]
        node = base
    return node


def is_stored_part(node: torch.fx.Node) -> bool:
    """Whether `node` is a part of a constant, and the program holds it as one."""
    spec = node.meta.get("spec")
    return is_alias(node) and type(spec) is TensorSpec and spec.const
