# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Slices beside delegates: XNNPACK writes its outputs in place, others may not."""

from typing import Any, List, Tuple

import torch
from alias_testing import all_safe_aliases, assert_runs_as_eager, reasons, slice_kernels
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge, to_edge_transform_and_lower
from executorch.exir.backend.test.op_partitioner_demo import AddMulPartitionerDemo
from torch import nn, Tensor


class Gated(nn.Module):
    """A linear layer whose output is split into halves, as in a GLU."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.linear(x).view(12).chunk(2)
        return torch.erf(gate) - torch.erf(value)


class Heads(nn.Module):
    """Two delegated branches, each read through a select of its output."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tuple[Tensor, ...]:
        a, b = self.a(x), self.b(x)
        return a[0] + b[-1], torch.cumsum(a[0:1], 1), b


def lower(module: nn.Module, inputs: Tuple[Any, ...]) -> Any:
    exported = torch.export.export(module, inputs)
    edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
    return edge.to_executorch(all_safe_aliases())


def calls_of(manager: Any) -> List[str]:
    (plan,) = manager.executorch_program.execution_plan
    return [delegate.id for delegate in plan.delegates]


def test_pieces_of_a_delegate_output() -> None:
    module, inputs = Gated().eval(), (torch.arange(16.0).reshape(2, 8) / 9,)
    manager = lower(module, inputs)
    assert "XnnpackBackend" in calls_of(manager)
    assert reasons(manager) == ["SAFE", "SAFE"]
    assert slice_kernels(manager) == 0
    assert_runs_as_eager(module, inputs, manager)


def test_selects_of_delegate_outputs() -> None:
    module, inputs = Heads().eval(), (torch.arange(24.0).reshape(3, 8) / 9,)
    manager = lower(module, inputs)
    assert "XnnpackBackend" in calls_of(manager)
    assert set(reasons(manager)) <= {"SAFE"}
    assert slice_kernels(manager) == 0
    assert_runs_as_eager(module, inputs, manager)


def test_output_of_an_unknown_delegate() -> None:
    class Adds(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.ops.aten.cumsum((x + x)[1:3], 1)

    edge = to_edge(torch.export.export(Adds(), (torch.ones(4, 6),)))
    lowered = edge.to_backend(AddMulPartitionerDemo())
    manager = lowered.to_executorch()
    assert reasons(manager) == ["DELEGATE_OUTPUT"]
    assert slice_kernels(manager) == 1
