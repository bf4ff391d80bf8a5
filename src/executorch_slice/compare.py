# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Lowers a program twice, with this package and without, and compares what runs."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from executorch.exir import EdgeProgramManager, ExecutorchProgramManager
from executorch.extension.pybindings.portable_lib import (
    _load_for_executorch_from_buffer,
)
from executorch_slice import disabled
from torch import nn, Tensor
from torch.utils import _pytree as pytree


def lower(edge: EdgeProgramManager) -> ExecutorchProgramManager:
    """Lowers a copy of `edge`, which `to_executorch` changes in place."""
    return copy.deepcopy(edge).to_executorch()


def lower_stock(edge: EdgeProgramManager) -> ExecutorchProgramManager:
    with disabled():
        return lower(edge)


class LoadedProgram:
    """A program in the ExecuTorch runtime, which reads the `.pte` bytes in place."""

    def __init__(self, manager: ExecutorchProgramManager) -> None:
        self._buffer = manager.buffer
        self._module = _load_for_executorch_from_buffer(self._buffer)

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        outputs: list[Tensor] = self._module.forward(inputs)
        return outputs


@dataclass(frozen=True)
class Comparison:
    """How the outputs of three programs agree: eager, stock and aliased.

    Attributes:
        identical: whether aliased equals stock bit for bit.
        close: whether aliased equals eager within float32 rounding.
    """

    identical: bool
    close: bool

    def __bool__(self) -> bool:
        return self.identical and self.close


def compare(
    module: nn.Module,
    inputs: Sequence[Tensor],
    stock: ExecutorchProgramManager,
    aliased: ExecutorchProgramManager,
    runs: int,
) -> Comparison:
    """Runs all three `runs` times, on the values of `inputs` in ever new places."""
    eager, before, after = (
        copy.deepcopy(module), LoadedProgram(stock), LoadedProgram(aliased)
    )
    generator = torch.Generator().manual_seed(0)
    identical = close = True
    for _ in range(runs):
        inputs = [_permuted(x, generator) for x in inputs]
        want = pytree.tree_leaves(eager(*inputs))
        got = after(*inputs)
        identical &= _all(_same_bits, got, before(*inputs))
        close &= _all(_close, got, want)
    return Comparison(identical, close)


def _permuted(x: Tensor, generator: torch.Generator) -> Tensor:
    order = torch.randperm(x.numel(), generator=generator)
    return x.flatten()[order].reshape(x.shape)


def _all(
    agree: Callable[[Tensor, Tensor], bool], got: list[Tensor], want: list[Tensor]
) -> bool:
    return len(got) == len(want) and all(map(agree, got, want))


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))
    )


def _close(got: Tensor, want: Tensor) -> bool:
    return got.shape == want.shape and torch.allclose(got, want, rtol=1e-4, atol=1e-5)
