# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Transformers and what they are built of: packed projections, gates, experts."""

import torch
from torch import nn, Tensor
from torch.nn import functional as F

from .case import Case


def unbind_qkv(packed: Tensor, heads: int) -> tuple[Tensor, ...]:
    """q, k and v, (batch, heads, tokens, dim) each, of one packed projection."""
    b, t, d = packed.shape
    stacked = packed.reshape(b, t, 3, heads, d // 3 // heads).permute(2, 0, 3, 1, 4)
    q, k, v = stacked.unbind()
    return q, k, v


class DiTBlock(nn.Module):
    """Diffusion transformer block: shifts, scales and gates chunked off a condition."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)
        )
        self.modulation = nn.Linear(dim, 6 * dim)
        self.norm = nn.LayerNorm(dim, elementwise_affine=False)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        modulation = self.modulation(F.silu(condition)).chunk(6, 1)
        shift1, scale1, gate1, shift2, scale2, gate2 = modulation
        y = self.norm(x) * (1 + scale1[:, None]) + shift1[:, None]
        q, k, v = unbind_qkv(self.qkv(y), self.heads)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        x = x + gate1[:, None] * self.out(y)
        y = self.norm(x) * (1 + scale2[:, None]) + shift2[:, None]
        return x + gate2[:, None] * self.mlp(y)


class DiT(nn.Module):
    """Diffusion transformer with classifier-free guidance over halves of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([DiTBlock(64, 4), DiTBlock(64, 4)])
        self.head = nn.Linear(64, 16)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, condition)
        guided, free = self.head(x).chunk(2)
        return free + 4.0 * (guided - free)


class ViTAttention(nn.Module):
    """Attention as timm writes it."""

    def __init__(self, dim: int = 128, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = unbind_qkv(self.qkv(self.norm(x)), self.heads)
        weight = ((q * 0.1) @ k.transpose(-2, -1)).softmax(-1)
        return x + self.out((weight @ v).transpose(1, 2).reshape(x.shape))


class ViT(nn.Module):
    """Attention layers over positions cut to length; classifies the first token."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.randn(1, 128, 128))
        self.layers = nn.Sequential(*[ViTAttention() for _ in range(3)])
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.position[:, : x.shape[1]]
        return self.head(self.layers(x)[:, 0])


class Encoder(nn.Module):
    """`nn.TransformerEncoder` behind a class token."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.token = nn.Parameter(torch.randn(1, 1, 64))
        self.head = nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        return self.head(self.encoder(x)[:, 0])


class Llama(nn.Module):
    """Prefill as Meta writes it: rotary over pairs, tables cut to length."""

    cos: Tensor
    sin: Tensor

    def __init__(self, dim: int = 128, heads: int = 4, max_tokens: int = 128) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (
            nn.Linear(dim, dim, bias=False) for _ in range(4)
        )
        self.up = nn.Linear(dim, 6 * dim, bias=False)
        self.down = nn.Linear(3 * dim, dim, bias=False)
        self.head = nn.Linear(dim, 512, bias=False)
        pairs = dim // heads // 2
        frequency = 1e4 ** (-torch.arange(pairs) / pairs)
        angle = torch.outer(torch.arange(max_tokens).float(), frequency)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    @staticmethod
    def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        real, imag = x.unflatten(-1, (-1, 2)).unbind(-1)
        pairs = [real * cos - imag * sin, real * sin + imag * cos]
        return torch.stack(pairs, -1).flatten(3)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        cos, sin = self.cos[:t], self.sin[:t]
        cos, sin = cos[None, :, None], sin[None, :, None]
        q = self.rotate(self.q(x).view(b, t, self.heads, -1), cos, sin)
        k = self.rotate(self.k(x).view(b, t, self.heads, -1), cos, sin)
        v = self.v(x).view(b, t, self.heads, -1)
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        gate, value = self.up(x).chunk(2, -1)
        x = x + self.down(F.silu(gate) * value)
        return self.head(x[:, -1])


class Medusa(nn.Module):
    """Speculative decoding: one projection for all heads, a select for each."""

    def __init__(self, dim: int = 128, heads: int = 4, vocab: int = 512) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(dim, dim * heads)
        self.vocab = nn.Linear(dim, vocab, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x[:, -4:]
        b, t, d = x.shape
        y = F.silu(self.project(x)).view(b, t, self.heads, d) + x[:, :, None]
        logits = self.vocab(y.permute(2, 0, 1, 3))
        base, *drafts = [logits[i] for i in range(self.heads)]
        picks = torch.stack([draft[:, -1].argmax(-1) for draft in drafts])
        return base[:, -1].softmax(-1), picks


class GatedMLP(nn.Module):
    """`F.glu`, then gMLP's spatial gate."""

    def __init__(self, dim: int = 64, tokens: int = 32) -> None:
        super().__init__()
        self.up1, self.down1 = nn.Linear(dim, 4 * dim), nn.Linear(2 * dim, dim)
        self.up2, self.down2 = nn.Linear(dim, 4 * dim), nn.Linear(2 * dim, dim)
        self.spatial = nn.Conv1d(tokens, tokens, 1)
        self.norm = nn.LayerNorm(2 * dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.down1(F.glu(self.up1(x), -1))
        value, gate = self.up2(x).chunk(2, -1)
        return x + self.down2(value * self.spatial(self.norm(gate)))


class MixtureOfExperts(nn.Module):
    """Every expert on every token: expert weights are selects of a constant."""

    def __init__(self, dim: int = 64, experts: int = 4) -> None:
        super().__init__()
        self.experts = experts
        self.up = nn.Parameter(torch.randn(experts, dim, 4 * dim) * 0.1)
        self.down = nn.Parameter(torch.randn(experts, 2 * dim, dim) * 0.1)
        self.router = nn.Linear(dim, experts)

    def forward(self, x: Tensor) -> Tensor:
        share = self.router(x).softmax(-1)
        outputs: list[Tensor] = []
        for e in range(self.experts):
            gate, value = (x @ self.up[e]).chunk(2, -1)
            y = (F.silu(gate) * value) @ self.down[e]
            outputs.append(share[:, e : e + 1] * y)
        return sum(outputs)


class BatchedExperts(nn.Module):
    """All experts in one `bmm`, then a head for each expert's rows."""

    def __init__(self, dim: int = 64, experts: int = 4) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, dim, dim) * 0.1)
        self.heads = nn.ModuleList(nn.Linear(dim, 16) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.bmm(x.expand(len(self.heads), -1, -1), self.weight)
        return torch.cat([head(y[i]) for i, head in enumerate(self.heads)], -1)


def dit_adaln() -> Case:
    return Case(DiT(), (torch.randn(2, 32, 64), torch.randn(2, 64)))


def mha_qkv_unbind() -> Case:
    return Case(ViT(), (torch.randn(1, 64, 128),))


def nn_transformer_encoder() -> Case:
    return Case(Encoder(), (torch.randn(1, 32, 64),))


def llama_handwritten_prefill_interleaved() -> Case:
    return Case(Llama(), (torch.randn(1, 32, 128),))


def dyn_llama_prefill() -> Case:
    case = llama_handwritten_prefill_interleaved()
    case.dynamic_shapes = {"x": {1: torch.export.Dim("t", min=2, max=64)}}
    return case


def medusa_spec_heads() -> Case:
    return Case(Medusa(), (torch.randn(1, 32, 128),))


def glu_mlp_mixer() -> Case:
    return Case(GatedMLP(), (torch.randn(1, 32, 64),))


def moe_topk_experts() -> Case:
    return Case(MixtureOfExperts(), (torch.randn(8, 64),))


def batched_experts_select() -> Case:
    return Case(BatchedExperts(), (torch.randn(1, 8, 64),))


class TableAttention(nn.Module):
    """Tables made for 128 positions, of which this export reads 24; a packed weight."""

    def __init__(self, dim: int = 64, heads: int = 4, longest: int = 128) -> None:
        super().__init__()
        self.heads = heads
        self.position = nn.Parameter(torch.randn(longest, dim))
        self.in_proj = nn.Parameter(torch.randn(3 * dim, dim) / 8)
        angles = torch.outer(torch.arange(longest), 0.1 ** torch.arange(dim // heads))
        self.register_buffer("rope", torch.stack([angles.cos(), angles.sin()]))

    def rotate(self, x: Tensor) -> Tensor:
        cos, sin = (table[: x.shape[-2]] for table in self.rope.unbind())
        return x * cos + x.flip(-1) * sin

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        x = x + self.position[: x.shape[1]]
        projected = map(F.linear, (x, memory, memory), self.in_proj.chunk(3))
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in projected)
        y = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v)
        return x + y.transpose(1, 2).flatten(2)


def position_tables() -> Case:
    return Case(TableAttention(), (torch.randn(1, 24, 64), torch.randn(1, 24, 64)))
