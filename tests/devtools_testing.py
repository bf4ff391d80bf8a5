# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""What the tests of ExecuTorch's devtools share: a model, and how it is lowered."""

from typing import Any, List, Tuple

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import ExecutorchProgramManager, to_edge_transform_and_lower
from torch import nn, Tensor


class Halves(nn.Module):
    """Two aliases, and a transpose that stays."""

    def forward(self, x: Tensor) -> Tuple[Tensor, Tensor]:
        y = x.sin()
        top, bottom = y[:2].relu(), y[2:].relu()
        return top + bottom, y.transpose(0, 1).exp()


ALIASES = ["aten_slice_copy_tensor", "aten_slice_copy_tensor_1"]
INPUTS = (torch.arange(32.0).reshape(4, 8),)


class Projected(nn.Module):
    """Two linear layers, which XNNPACK takes; what lies between is an alias."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).unsqueeze(0))


def delegated() -> ExecutorchProgramManager:
    exported = torch.export.export(Projected(), INPUTS)
    edge = to_edge_transform_and_lower(
        exported, partitioner=[XnnpackPartitioner()], generate_etrecord=True
    )
    return edge.to_executorch()


def instructions(manager: ExecutorchProgramManager) -> List[Any]:
    (plan,) = manager.executorch_program.execution_plan
    (chain,) = plan.chains
    found: List[Any] = chain.instructions
    return found
