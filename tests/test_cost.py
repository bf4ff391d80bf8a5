# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""What `program_cost` counts, on programs small enough to count by hand."""

import torch
from executorch.exir import to_edge
from executorch_slice import disabled
from executorch_slice.cost import program_cost, ProgramCost
from torch import nn, Tensor

ROW = 6 * 4  # bytes


class Slices(nn.Module):
    """Seven instructions, three of them slices: 3 rows, 1 row and 2 + 2 rows."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = x.sin()
        first, second = y.split(2)
        return y[1:].cos(), y[0].cos(), first * second


class OtherCopies(nn.Module):
    """Two instructions, one of them a copy of the view family."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(0, 1).cos()


def cost_of(dtype: torch.dtype = torch.float32, **methods: nn.Module) -> ProgramCost:
    inputs = (torch.randn(4, 6, dtype=dtype),)
    exported = {name: torch.export.export(m, inputs) for name, m in methods.items()}
    with disabled():
        return program_cost(to_edge(exported).to_executorch())


def test_a_slice_counts_once_with_the_bytes_that_it_writes() -> None:
    cost = cost_of(forward=Slices())
    assert cost.instructions == 7
    assert cost.slice_instructions == 3
    assert cost.bytes_copied == (3 + 1 + 4) * ROW


def test_bytes_follow_the_dtype() -> None:
    cost = cost_of(torch.float16, forward=Slices())
    assert cost.bytes_copied == (3 + 1 + 4) * ROW // 2


def test_views_count_apart() -> None:
    cost = cost_of(forward=OtherCopies())
    assert cost.instructions == 2
    assert (cost.slice_instructions, cost.view_instructions) == (0, 1)
    assert cost.bytes_copied == 4 * ROW


def test_methods_are_summed() -> None:
    slices, other = cost_of(forward=Slices()), cost_of(forward=OtherCopies())
    both = cost_of(forward=Slices(), other=OtherCopies())
    assert both.instructions == slices.instructions + other.instructions
    assert both.slice_instructions == slices.slice_instructions
    assert both.view_instructions == other.view_instructions
    assert both.bytes_copied == slices.bytes_copied + other.bytes_copied
    assert both.arena_bytes == slices.arena_bytes + other.arena_bytes
    assert both.pte_bytes > slices.pte_bytes > 0
