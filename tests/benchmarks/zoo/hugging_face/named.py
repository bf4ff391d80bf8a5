# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Calls of models by argument names, and what many of them share."""

from typing import Any

import torch
from torch import nn, Tensor

from ..case import Case

WORDS = 512
SPECIAL_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LAYERS = {"num_attention_heads": 4, "num_hidden_layers": 2}
SMALL = LAYERS | {"hidden_size": 64, "intermediate_size": 128}
MEDIUM = LAYERS | {"hidden_size": 128, "intermediate_size": 512}


class Named(nn.Module):
    """Calls a model with arguments by name, and returns some of its results."""

    def __init__(
        self,
        called: nn.Module,
        arguments: tuple[str, ...],
        results: tuple[str, ...],
        options: dict[str, Any],
    ) -> None:
        super().__init__()
        self.called = called
        self.arguments = arguments
        self.results = results
        self.options = options

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        found = self.called(**dict(zip(self.arguments, inputs)), **self.options)
        return tuple(getattr(found, name) for name in self.results)


def case(called: nn.Module, results: str, /, **arguments: Any) -> Case:
    """Tensors among the arguments are inputs; all else is part of the model."""
    inputs = {k: v for k, v in arguments.items() if isinstance(v, Tensor)}
    options = {k: v for k, v in arguments.items() if k not in inputs}
    named = Named(called, tuple(inputs), tuple(results.split()), options)
    return Case(named, tuple(inputs.values()))


def tokens(batch: int = 1, length: int = 32) -> Tensor:
    return torch.randint(5, 500, (batch, length))
