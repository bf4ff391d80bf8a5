# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Models whose slices grow from run to run, lowered to et_slice, against eager."""

import copy
from typing import Any

import pytest
import torch
from alias_testing import operators, slice_kernels
from executorch_slice import decisions
from executorch_slice.compare import LoadedProgram
from test_et_slice_lowering import export, lower_both
from torch import nn, Tensor
from torch.export import Dim
from torch.nn import functional as F

pytestmark = pytest.mark.usefixtures("kernels")

VOCABULARY, WIDTH, HEADS, LONGEST = 32, 16, 2, 32


class Attention(nn.Module):
    """Reads as much of its cache as has been written."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        shape = (1, LONGEST, HEADS, WIDTH // HEADS)
        self.register_buffer("keys", torch.zeros(shape))
        self.register_buffer("values", torch.zeros(shape))

    def forward(self, x: Tensor, at: Tensor, mask: Tensor, end: int) -> Tensor:
        count = x.shape[1]
        q, k, v = (
            part.view(1, count, HEADS, WIDTH // HEADS)
            for part in self.qkv(x).split(WIDTH, -1)
        )
        self.keys.index_copy_(1, at, k)
        self.values.index_copy_(1, at, v)
        keys = self.keys[:, :end].transpose(1, 2)
        values = self.values[:, :end].transpose(1, 2)
        scores = q.transpose(1, 2) @ keys.transpose(2, 3) / (WIDTH // HEADS) ** 0.5
        read = F.softmax(scores + mask, -1) @ values
        return self.out(read.transpose(1, 2).reshape(1, count, WIDTH))


class Decoder(nn.Module):
    """A small Llama-style decoder; both its sequence and its cache are dynamic."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Attention() for _ in range(2))
        self.register_buffer("positions", torch.rand(LONGEST, WIDTH))
        mask = torch.full((LONGEST, LONGEST), -1e9).triu(1)
        self.register_buffer("mask", mask)

    def forward(self, tokens: Tensor, start: Tensor) -> Tensor:
        count, first = tokens.shape[1], start.item()
        torch._check(first >= 0)
        torch._check(first + count <= LONGEST)
        at = torch.arange(count) + first
        end = first + count
        x = self.embedding(tokens) + self.positions.narrow(0, first, count)
        mask = self.mask.narrow(0, first, count)[:, :end]
        for layer in self.layers:
            x = x + layer(x, at, mask, end)
        return x[:, -1] @ self.embedding.weight.t()


def test_decoder_with_a_growing_cache() -> None:
    """Prefills with prompts of any length, then decodes token by token."""
    torch.manual_seed(0)
    module = Decoder().requires_grad_(False)
    inputs = (torch.ones(1, 4, dtype=torch.int64), torch.tensor(0))
    count = Dim("count", min=1, max=LONGEST)
    edge = export(module, inputs, ({1: count}, None))
    manager, without = lower_both(edge)
    made = {"executorch_prim::et_slice", "executorch_prim::et_select"}
    assert made <= set(operators(manager))
    assert slice_kernels(manager) < slice_kernels(without)
    for length in (7, 1, 12):
        eager, program = copy.deepcopy(module), LoadedProgram(manager)
        tokens, start = torch.arange(length)[None] % VOCABULARY, 0
        for _ in range(20):
            step: Any = (tokens, torch.tensor(start))
            (got,), want = program(*step), eager(*step)
            torch.testing.assert_close(got, want)
            start += tokens.shape[1]
            tokens = want.argmax(-1, keepdim=True)


class Ring(nn.Module):
    """Keeps the last frames of a stream whose chunks have any length."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frames", torch.zeros(16, 4))

    def forward(self, chunk: Tensor) -> Tensor:
        count = chunk.shape[0]
        frames = torch.cat([self.frames[count:], chunk])
        self.frames.copy_(frames)
        return frames[-8:].sum(0) + frames[16 - count :].amax(0) - frames[0]


def test_stream_with_a_ring_buffer() -> None:
    module = Ring()
    chunk = Dim("chunk", min=2, max=8)
    edge = export(module, (torch.rand(3, 4),), ({0: chunk},))
    manager, _ = lower_both(edge)
    assert slice_kernels(manager) == 0
    assert "kernel" in {d.verdict for d in decisions(manager)}
    program = LoadedProgram(manager)
    for step in range(20):
        frames = torch.rand(step % 7 + 2, 4)
        (got,), want = program(frames), module(frames)
        torch.testing.assert_close(got, want)
