# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Returned views, compiled by AOTInductor for the CPU and run: eager's, contiguous.

All kinds of views are outputs of one program, which is compiled once. With
``AOTI_ONE_BY_ONE=1`` each kind is compiled and run as a program of its own, too.
"""

import os
from typing import Any, Callable, Dict, List, Tuple

import pytest
import torch
from cuda_testing import Compiled, CudaBackend, is_exact, lower, SPECS
from executorch.exir import EdgeCompileConfig, to_edge
from executorch_slice import disabled
from torch import nn, Tensor
from torch.export import Dim
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
Function = Callable[[Tensor], Any]
# Of a computed tensor of 4 x 6 x 8: strides are not those of a contiguous result.
STRIDED: Dict[str, Function] = {
    "last dim": lambda y: y[..., :3],
    "last dim, offset": lambda y: y[:, :, 5:],
    "middle dim": lambda y: y[:, 1:3],
    "two dims": lambda y: y[1:, 2:4],
    "step": lambda y: y[:, ::2],
    "step of dim 0": lambda y: y[1::2],
    "select last dim": lambda y: y[..., 2],
    "select middle dim": lambda y: y[:, -1],
    "select the first of the middle dim": lambda y: y[:, 0],
    "slice of a transpose": lambda y: y.transpose(0, 1)[1:3],
    "slice of a permute": lambda y: y.permute(2, 0, 1)[:, 1:],
    "slice of a select": lambda y: y[1][:, 2:5],
    "chain": lambda y: y[1:][:, 2:][..., :4],
    "chunk of the last dim": lambda y: y.chunk(2, -1),
    "split of the middle dim": lambda y: torch.split(y, 4, 1),
    "split_with_sizes of the last dim": lambda y: y.split_with_sizes([3, 5], -1),
    "unbind of the middle dim": lambda y: y.unbind(1),
    "tensor_split": lambda y: y.tensor_split(3, 1),
    "narrow": lambda y: y.narrow(2, 1, 3),
    "bool": lambda y: (y > 0)[..., 1:3],
    "bfloat16": lambda y: y.bfloat16()[..., :5],
    "float16": lambda y: y.half()[:, 2:],
    "int64": lambda y: y.long()[..., 4:],
    "batch 1": lambda y: y[:1].exp()[:, 1:],
    "batch 1, select": lambda y: y[:1].exp()[..., 0],
    "all dims of size 1": lambda y: y[:1, :1].exp()[..., 2:3],
    "detach of a slice": lambda y: y[..., :3].detach(),
    "returned and used": lambda y: (y[..., 2:4], y[..., 2:4] * 2),
    "returned with its base": lambda y: (y, y[..., 1:]),
    "nested": lambda y: {"a": [y[..., :2], (y[0], y + 1)]},
}
# Contiguous, at an offset: what Inductor takes for no copy at all.
OFFSET: Dict[str, Function] = {
    "rows": lambda y: y[1:],
    "row": lambda y: y[2],
    "last row": lambda y: y[-1],
    "last rows": lambda y: y[-2:],
    "a row of a row": lambda y: y[1, 2],
    "one element": lambda y: y[3, 5, 7],
    "chunk": lambda y: y.chunk(2),
    "split": lambda y: torch.split(y, 3),
    "split_with_sizes": lambda y: y.split_with_sizes([1, 3]),
    "unbind": lambda y: y.unbind(),
    "batch 1": lambda y: y[:1].exp()[0, 2:],
    "detach": lambda y: y[1:].detach(),
    "clone": lambda y: y[1:].clone(),
    "reshape": lambda y: y[1:].reshape(-1, 4),
    "unsqueeze": lambda y: y[3].unsqueeze(0),
    "squeeze": lambda y: y[1:2].squeeze(0),
    "returned twice": lambda y: (y[1:], y[1:]),
}
# Right as they are, which they stay.
EXACT: Dict[str, Function] = {
    "first rows": lambda y: y[:2],
    "first row": lambda y: y[0],
    "all of it": lambda y: y[:4],
    "all of it, and its base": lambda y: (y, y[:4]),
    "nothing": lambda y: y[4:],
    "nothing, last dim": lambda y: y[..., 3:3],
    "permute": lambda y: y.permute(2, 0, 1),
    "permute of rows": lambda y: y[1:].permute(2, 0, 1),
    "slice that is used": lambda y: y[..., 1:] * y[..., :-1],
    "split that is used": lambda y: torch.add(*torch.split(y, 3, 1)),
    "detach that is used": lambda y: y.detach() + 1,
}
KINDS = {"strided": STRIDED, "offset": OFFSET, "exact": EXACT}
# Stock refuses to compile these, with validity checks or at all.
NOT_IN_STOCK = ("chunk", "detach", "split")
X = torch.arange(192.0).reshape(4, 6, 8) - 90


class OfComputed(nn.Module):
    """Each function, of a tensor of its own that the program computes."""

    def __init__(self, functions: List[Function]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, x: Tensor) -> Any:
        return [function(x * (i + 1)) for i, function in enumerate(self.functions)]


class OfMemoryOfOthers(nn.Module):
    """Views of an input, a parameter, a buffer, and a buffer that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(X * 2)
        self.register_buffer("table", X * 3)
        self.register_buffer("cache", torch.zeros(4, 6))

    def forward(self, x: Tensor) -> Any:
        self.cache[1:3] = x[:2, :, 0]
        return [
            [t[1:], t[0], t[:2], t[-1], t[..., 1:3], t[:, 2], t[1:].reshape(-1)]
            for t in (x, self.weight, self.table)
        ] + [self.cache[:2], self.cache[1], self.cache[:, 1:]]
