# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""What a model of the zoo is made of, and blocks that several share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch import nn, Tensor
from torch.export import ExportedProgram


@dataclass
class Case:
    """A module, example inputs and what `torch.export.export` takes for the rest."""

    module: nn.Module
    inputs: tuple[Tensor, ...]
    dynamic_shapes: Optional[dict[str, Any]] = None
    strict: bool = False

    def export(self) -> ExportedProgram:
        return torch.export.export(
            self.module.eval(),
            self.inputs,
            dynamic_shapes=self.dynamic_shapes,
            strict=self.strict,
        )


def by_name(*builders: Callable[[], Case]) -> dict[str, Callable[[], Case]]:
    """The builders by their names; each makes the same case each time, in eval mode."""
    return {builder.__name__: _seeded(builder) for builder in builders}


def _seeded(builder: Callable[[], Case]) -> Callable[[], Case]:
    def build() -> Case:
        torch.manual_seed(0)
        case = builder()
        case.module.eval().requires_grad_(False)
        return case

    return build


class ConvBnAct(nn.Sequential):
    """Convolution that keeps the size at stride 1, batch norm and, if asked, SiLU."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int = 3,
        stride: int = 1,
        groups: int = 1,
        act: bool = True,
    ) -> None:
        padding = kernel // 2
        super().__init__(
            nn.Conv2d(
                inputs, outputs, kernel, stride, padding, groups=groups, bias=False
            ),
            nn.BatchNorm2d(outputs),
            nn.SiLU() if act else nn.Identity(),
        )
