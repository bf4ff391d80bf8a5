# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""What `program_cost` counts, on programs small enough to count by hand."""

import torch
from executorch.exir import ExecutorchProgramManager, to_edge
from executorch_slice import disabled
from executorch_slice.cost import program_cost
from torch import nn, Tensor

ROW = 6 * 4  # bytes


class Slices(nn.Module):
    """Seven instructions, three of them slices: 3 rows, 1 row and 2 + 2 rows."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = x.sin()
        first, second = y.split(2)
        return y[1:].cos(), y[0].cos(), first * second


class OtherCopies(nn.Module):
    """Two instructions, one of them a copy, but not a slice."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(0, 1).cos()


def lower_stock(**methods: nn.Module) -> ExecutorchProgramManager:
    inputs = (torch.randn(4, 6),)
    exported = {name: torch.export.export(m, inputs) for name, m in methods.items()}
    with disabled():
        return to_edge(exported).to_executorch()


def test_slices_are_counted_once_with_the_bytes_they_write() -> None:
    cost = program_cost(lower_stock(forward=Slices()))
    assert cost.instructions == 7
    assert cost.slice_instructions == 3
    assert cost.bytes_copied == (3 + 1 + 4) * ROW


def test_bytes_follow_the_dtype() -> None:
    module = Slices().half()
    exported = torch.export.export(module, (torch.randn(4, 6).half(),))
    with disabled():
        cost = program_cost(to_edge(exported).to_executorch())
    assert cost.bytes_copied == (3 + 1 + 4) * ROW // 2


def test_other_copies_are_not_slices() -> None:
    cost = program_cost(lower_stock(forward=OtherCopies()))
    assert cost.instructions == 2
    assert cost.slice_instructions == cost.bytes_copied == 0


def test_methods_are_summed() -> None:
    both = lower_stock(forward=Slices(), other=OtherCopies())
    cost = program_cost(both)
    assert cost.instructions == 9
    assert cost.slice_instructions == 3
    assert cost.arena_bytes == sum(
        program_cost(lower_stock(forward=module)).arena_bytes
        for module in (Slices(), OtherCopies())
    )
    assert cost.pte_bytes == len(both.buffer)
