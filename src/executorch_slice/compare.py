# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Lowers a program twice, with this package and without, and compares what runs."""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Optional, Union

import torch
from executorch.exir import EdgeProgramManager, ExecutorchProgramManager
from executorch.extension.pybindings.portable_lib import (
    _load_for_executorch_from_buffer,
)
from executorch_slice import disabled, ExecutorchBackendConfig
from torch import nn, Tensor
from torch.utils import _pytree as pytree

ATOL = 1e-5  # between kernels and eager


def lower(
    edge: EdgeProgramManager, config: Optional[ExecutorchBackendConfig] = None
) -> ExecutorchProgramManager:
    """Lowers a copy of `edge`, which `to_executorch` changes in place."""
    return copy.deepcopy(edge).to_executorch(config)


def lower_stock(edge: EdgeProgramManager) -> ExecutorchProgramManager:
    with disabled():
        return lower(edge)


class LoadedProgram:
    """A program in the ExecuTorch runtime, which reads the `.pte` bytes in place."""

    def __init__(self, program: Union[ExecutorchProgramManager, bytes]) -> None:
        self._buffer = program if isinstance(program, bytes) else program.buffer
        self._module = _load_for_executorch_from_buffer(self._buffer)

    def __call__(self, *inputs: Any) -> list[Any]:
        outputs: list[Any] = self._module.forward(inputs)
        return outputs


def outputs_agree(
    module: nn.Module,
    inputs: Sequence[Tensor],
    stock: ExecutorchProgramManager,
    aliased: ExecutorchProgramManager,
    runs: int,
    atol: float = ATOL,
) -> bool:
    """Whether aliased equals stock bit for bit, and eager within float32 rounding.

    A backend's rounding may need a larger `atol` than kernels do. Runs all three `runs`
    times, on the values of `inputs` in ever new places.
    """
    near = partial(close, atol=atol)
    eager = copy.deepcopy(module)
    before, after = LoadedProgram(stock), LoadedProgram(aliased)
    generator = torch.Generator().manual_seed(0)
    for _ in range(runs):
        inputs = [_permuted(x, generator) for x in inputs]
        outputs = after(*inputs)
        if not (
            all_pairs(same_bits, outputs, before(*inputs))
            and all_pairs(near, outputs, pytree.tree_leaves(eager(*inputs)))
        ):
            return False
    return True


def _permuted(x: Tensor, generator: torch.Generator) -> Tensor:
    order = torch.randperm(x.numel(), generator=generator)
    return x.flatten()[order].reshape(x.shape)


def all_pairs(
    agree: Callable[[Tensor, Tensor], bool], got: list[Any], want: list[Any]
) -> bool:
    """Whether there are as many of both, and each two tensors or other values agree."""
    return len(got) == len(want) and all(
        agree(g, w) if isinstance(g, Tensor) and isinstance(w, Tensor) else g == w
        for g, w in zip(got, want)
    )


def same_bits(got: Tensor, want: Tensor) -> bool:
    alike: bool = got.dtype == want.dtype and got.shape == want.shape
    return alike and torch.equal(_bytes(got), _bytes(want))


def _bytes(x: Tensor) -> Tensor:
    return x.reshape(-1).view(torch.uint8)


def close(got: Tensor, want: Tensor, atol: float = ATOL) -> bool:
    """Whether two tensors are the same within float32 rounding."""
    alike: bool = got.shape == want.shape
    return alike and torch.allclose(got, want, rtol=1e-4, atol=atol)
