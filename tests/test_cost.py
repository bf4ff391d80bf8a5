# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""What `program_cost` counts, on a program small enough to count by hand."""

import torch
from executorch.exir import to_edge
from executorch_slice import disabled
from executorch_slice.cost import program_cost
from torch import nn, Tensor


class Slices(nn.Module):
    """A slice of 3 rows, a select of 1 row and a split into 2 + 2 rows, of 6 floats."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = x + 1
        first, second = y.split(2)
        return y[1:] * 2, y[0] * 2, first * second


class Delegated(nn.Module):
    """Copies, but none of the slice family."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(0, 1).clone() + 1


def lower_stock(**methods: nn.Module):
    inputs = (torch.randn(4, 6),)
    exported = {n: torch.export.export(m, inputs) for n, m in methods.items()}
    with disabled():
        return to_edge(exported).to_executorch()
