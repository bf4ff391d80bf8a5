# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Networks over audio: dilated, gated and streaming convolutions, frame picks."""

from typing import Union

import torch
from torch import nn, Tensor
from torch.nn import functional as F

from .case import Case


class ChompBlock(nn.Module):
    """Two convolutions padded at both ends; the end that sees the future is cut."""

    def __init__(self, channels: int, dilation: int, kernel: int = 3) -> None:
        super().__init__()
        self.padding = (kernel - 1) * dilation
        self.conv1, self.conv2 = (
            nn.Conv1d(
                channels, channels, kernel, padding=self.padding, dilation=dilation
            )
            for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.conv1(x)[:, :, : -self.padding])
        y = F.relu(self.conv2(y)[:, :, : -self.padding])
        return F.relu(x + y)


class TCN(nn.Module):
    """Temporal convolutional network; classifies the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.input = nn.Conv1d(8, 32, 1)
        self.blocks = nn.Sequential(*[ChompBlock(32, 2**i) for i in range(4)])
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.input(x))[:, :, -1])


class WaveNet(nn.Module):
    """Channels split into value and gate, then into residual and skip; time cropped."""

    def __init__(self, channels: int = 32, layers: int = 5, samples: int = 128) -> None:
        super().__init__()
        self.channels = channels
        self.outputs = samples - (2**layers - 1)
        self.input = nn.Conv1d(1, channels, 1)
        self.dilated = nn.ModuleList(
            nn.Conv1d(channels, 2 * channels, 2, dilation=2**i) for i in range(layers)
        )
        self.mix = nn.ModuleList(
            nn.Conv1d(channels, 2 * channels, 1) for _ in range(layers)
        )
        self.head = nn.Sequential(
            nn.ReLU(),
            nn.Conv1d(channels, channels, 1),
            nn.ReLU(),
            nn.Conv1d(channels, 64, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.input(x)
        skip: Union[int, Tensor] = 0
        for dilated, mix in zip(self.dilated, self.mix):
            value, gate = dilated(x).chunk(2, 1)
            z = mix(torch.tanh(value) * torch.sigmoid(gate))
            x = z[:, : self.channels] + x[:, :, -z.shape[2] :]
            skip = skip + z[:, self.channels :, -self.outputs :]
        return self.head(skip)


class StreamingConv(nn.Module):
    """Causal convolution that keeps the end of its input for the next call."""

    tail: Tensor

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, kernel, dilation=dilation)
        self.register_buffer("tail", torch.zeros(1, inputs, (kernel - 1) * dilation))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.tail, x], 2)
        self.tail.copy_(x[:, :, -self.tail.shape[2] :])
        return F.relu(self.conv(x))


class KeywordSpotter(nn.Module):
    """Streaming keyword spotting; classifies the last frame of the chunk."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            StreamingConv(16, 32, 3, 1),
            StreamingConv(32, 32, 3, 2),
            StreamingConv(32, 32, 3, 4),
        )
        self.head = nn.Linear(32, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.convs(x)[:, :, -1])


class Demucs(nn.Module):
    """Strided convolutions and back, with the skip and the output trimmed."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.encoder1 = self.encoder(1, channels)
        self.encoder2 = self.encoder(channels, 2 * channels)
        self.decoder2 = nn.Sequential(*self.decoder(2 * channels, channels), nn.ReLU())
        self.decoder1 = self.decoder(channels, 1)

    @staticmethod
    def encoder(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv1d(inputs, outputs, 8, 4),
            nn.ReLU(),
            nn.Conv1d(outputs, 2 * outputs, 1),
            nn.GLU(1),
        )

    @staticmethod
    def decoder(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv1d(inputs, 2 * inputs, 1),
            nn.GLU(1),
            nn.ConvTranspose1d(inputs, outputs, 8, 4),
        )

    def forward(self, x: Tensor) -> Tensor:
        samples = x.shape[-1]
        skip = self.encoder1(F.pad(x, (0, 12)))
        y = self.encoder2(skip)
        y = self.decoder2(y + y)
        y = self.decoder1(y + skip[..., : y.shape[-1]])
        return torch.tanh(y[..., : samples - 60])


class CTCFrames(nn.Module):
    """The best label of each frame, for each utterance of a batch to its length."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(40, 64)
        self.head = nn.Linear(64, 32)

    def forward(self, x: Tensor) -> list[Tensor]:
        y = self.head(torch.tanh(self.encoder(x))).log_softmax(-1)
        lengths = (20, 16, 24, 10)
        labels = [y[i, :length].argmax(-1) for i, length in enumerate(lengths)]
        return [*labels, y[0].amax(0)]


def tcn_chomp() -> Case:
    return Case(TCN(), (torch.randn(1, 8, 128),))


def wavenet_gated() -> Case:
    return Case(WaveNet(), (torch.randn(1, 1, 128),))


def streaming_kws_ring_buffer() -> Case:
    return Case(KeywordSpotter(), (torch.randn(1, 16, 8),))


def demucs_like_skip_trim() -> Case:
    return Case(Demucs(), (torch.randn(1, 1, 1000),))


def ctc_beam_frame_pick() -> Case:
    return Case(CTCFrames(), (torch.randn(4, 24, 40),))
