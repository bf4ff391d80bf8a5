# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Three small models, with random weights, that slice as real ones do."""

from collections.abc import Callable

import torch
from torch import nn, Tensor
from torch.nn import functional as F


class RMSNorm(nn.Module):
    """Scales each token to unit root mean square."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Attention(nn.Module):
    """Causal attention: one projection for q, k and v, rotary positions by halves."""

    cos: Tensor
    sin: Tensor

    def __init__(self, dim: int, heads: int, tokens: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        half = dim // heads // 2
        frequency = 10000.0 ** (-torch.arange(half) / half)
        angle = torch.outer(torch.arange(tokens), frequency)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def rotate(self, x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        x1, x2 = x[..., :half], x[..., half:]
        return torch.cat(
            [x1 * self.cos - x2 * self.sin, x2 * self.cos + x1 * self.sin], -1
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, dim = x.shape
        heads = self.qkv(x).view(batch, tokens, 3 * self.heads, -1).transpose(1, 2)
        q, k, v = heads.chunk(3, 1)
        attended = F.scaled_dot_product_attention(
            self.rotate(q), self.rotate(k), v, is_causal=True
        )
        return self.out(attended.transpose(1, 2).reshape(batch, tokens, dim))


class SwiGLU(nn.Module):
    """Gated feed-forward layer: one projection for the gate and the values."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(dim, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.up(x).chunk(2, -1)
        return self.down(F.silu(gate) * value)


class LlamaBlock(nn.Module):
    """Prefill of a Llama-style decoder block: logits of the token after the last."""

    def __init__(
        self, vocab: int = 512, dim: int = 128, heads: int = 4, tokens: int = 64
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim)
        self.attention_norm = RMSNorm(dim)
        self.attention = Attention(dim, heads, tokens)
        self.mlp_norm = RMSNorm(dim)
        self.mlp = SwiGLU(dim, 3 * dim)
        self.norm = RMSNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x = x + self.attention(self.attention_norm(x))
        x = x + self.mlp(self.mlp_norm(x))
        return self.head(self.norm(x)[:, -1])


def conv_bn(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(
            inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False
        ),
        nn.BatchNorm2d(outputs),
    )


class ShuffleUnit(nn.Module):
    """Half the channels pass, half are convolved; then both halves are interleaved."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.branch = nn.Sequential(
            conv_bn(half, half, 1),
            nn.ReLU(),
            conv_bn(half, half, 3, groups=half),
            conv_bn(half, half, 1),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        passed, convolved = x.chunk(2, 1)
        x = torch.cat([passed, self.branch(convolved)], 1)
        return F.channel_shuffle(x, 2)


class ShuffleNet(nn.Module):
    """ShuffleNetV2-style image classifier."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            conv_bn(3, 24, 3, stride=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
            ShuffleUnit(24),
            ShuffleUnit(24),
            conv_bn(24, 48, 3, stride=2),
            nn.ReLU(),
            ShuffleUnit(48),
            ShuffleUnit(48),
        )
        self.head = nn.Linear(48, classes)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.features(image).mean([2, 3]))


class GRU(nn.Module):
    """Gated recurrent unit, unrolled over time; classifies the last state."""

    def __init__(self, features: int = 40, hidden: int = 64, classes: int = 10) -> None:
        super().__init__()
        self.hidden = hidden
        self.input = nn.Linear(features, 3 * hidden)
        self.state = nn.Linear(hidden, 3 * hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, frames: Tensor) -> Tensor:
        h = frames.new_zeros(frames.shape[0], self.hidden)
        for t in range(frames.shape[1]):
            xr, xz, xn = self.input(frames[:, t]).chunk(3, 1)
            hr, hz, hn = self.state(h).chunk(3, 1)
            update = torch.sigmoid(xz + hz)
            candidate = torch.tanh(xn + torch.sigmoid(xr + hr) * hn)
            h = candidate + update * (h - candidate)
        return self.head(h)


def llama_block() -> tuple[nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    module = LlamaBlock().eval().requires_grad_(False)
    return module, (torch.randint(512, (1, 64)),)


def shufflenet() -> tuple[nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    module = ShuffleNet().eval().requires_grad_(False)
    return module, (torch.randn(1, 3, 64, 64),)


def gru() -> tuple[nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    module = GRU().eval().requires_grad_(False)
    return module, (torch.randn(1, 12, 40),)


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "llama_block": llama_block,
    "shufflenet": shufflenet,
    "gru": gru,
}
