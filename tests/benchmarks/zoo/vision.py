# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Convolutional image networks."""

import math

import torch
from torch import nn, Tensor
from torch.nn import functional as F

from .case import Case, ConvBnAct


class Classifier(nn.Module):
    """Class scores from the mean of a feature map."""

    def __init__(self, channels: int, *features: nn.Module) -> None:
        super().__init__()
        self.features = nn.Sequential(*features)
        self.head = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean([2, 3]))


class ShuffleUnit(nn.Module):
    """ShuffleNetV2: half the channels pass, half are convolved, both interleave."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.branch = nn.Sequential(
            ConvBnAct(half, half, 1),
            ConvBnAct(half, half, groups=half, act=False),
            ConvBnAct(half, half, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        passed, convolved = x.chunk(2, 1)
        x = torch.cat([passed, self.branch(convolved)], 1)
        b, c, h, w = x.shape
        return x.view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w)


class DenseLayer(nn.Module):
    """DenseNet: appends new channels to those that came in."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs)
        self.conv = nn.Conv2d(inputs, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(F.relu(self.norm(x)))], 1)


class Ghost(nn.Module):
    """GhostNet: costly and cheap channels, cut to size, with squeeze-excite."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs
        half = math.ceil(outputs / 2)
        self.primary = ConvBnAct(inputs, half, 1)
        self.cheap = ConvBnAct(half, half, groups=half)
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(outputs, outputs // 4, 1),
            nn.ReLU(),
            nn.Conv2d(outputs // 4, outputs, 1),
            nn.Hardsigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        primary = self.primary(x)
        y = torch.cat([primary, self.cheap(primary)], 1)[:, : self.outputs]
        return y * self.gate(y)


class UNet(nn.Module):
    """U-Net with unpadded convolutions, so each skip is cropped to its centre."""

    def __init__(self) -> None:
        super().__init__()
        self.down1 = self.block(1, 16)
        self.down2 = self.block(16, 32)
        self.bottom = self.block(32, 64)
        self.expand2 = nn.ConvTranspose2d(64, 32, 2, 2)
        self.expand1 = nn.ConvTranspose2d(32, 16, 2, 2)
        self.up2 = self.block(64, 32)
        self.up1 = self.block(32, 16)
        self.head = nn.Conv2d(16, 2, 1)

    @staticmethod
    def block(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3),
            nn.ReLU(),
        )

    @staticmethod
    def join(skip: Tensor, x: Tensor) -> Tensor:
        height, width = x.shape[2:]
        top, left = (skip.shape[2] - height) // 2, (skip.shape[3] - width) // 2
        crop = skip[:, :, top : top + height, left : left + width]
        return torch.cat([crop, x], 1)

    def forward(self, x: Tensor) -> Tensor:
        skip1 = self.down1(x)
        skip2 = self.down2(F.max_pool2d(skip1, 2))
        x = self.bottom(F.max_pool2d(skip2, 2))
        x = self.up2(self.join(skip2, self.expand2(x)))
        x = self.up1(self.join(skip1, self.expand1(x)))
        return self.head(x)


class SuperResolution(nn.Module):
    """A YOLOv5 Focus stem, ESPCN's pixel shuffle and a border crop."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(12, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 48, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        focus = [x[..., i::2, j::2] for j in (0, 1) for i in (0, 1)]
        y = F.pixel_shuffle(self.body(torch.cat(focus, 1)), 4)
        return torch.clamp(y[:, :, 4:-4, 4:-4], 0, 1)


class VAE(nn.Module):
    """Encodes to mean and log variance halves of the channels, samples, decodes."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            ConvBnAct(3, 16, stride=2),
            ConvBnAct(16, 32, stride=2),
            nn.Conv2d(32, 16, 1),
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(8, 16, 4, 2, 1),
            nn.SiLU(),
            nn.ConvTranspose2d(16, 3, 4, 2, 1),
        )

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        mean, log_var = self.encoder(x).chunk(2, 1)
        return self.decoder(mean + torch.exp(0.5 * log_var.clamp(-30, 20)) * noise)


def shufflenet_v2(batch: int = 1) -> Case:
    module = Classifier(
        48,
        ConvBnAct(3, 24, stride=2),
        ShuffleUnit(24),
        ShuffleUnit(24),
        ConvBnAct(24, 48, stride=2),
        ShuffleUnit(48),
        ShuffleUnit(48),
        ShuffleUnit(48),
    )
    return Case(module, (torch.randn(batch, 3, 64, 64),))


def shufflenet_v2_b4() -> Case:
    return shufflenet_v2(batch=4)


def densenet() -> Case:
    layers = [DenseLayer(inputs, 8) for inputs in (16, 24, 32, 40)]
    module = Classifier(48, nn.Conv2d(3, 16, 3, 2, 1), *layers, nn.AvgPool2d(2))
    return Case(module, (torch.randn(1, 3, 64, 64),))


def ghostnet() -> Case:
    module = Classifier(
        51,
        ConvBnAct(3, 16, stride=2),
        Ghost(16, 25),
        Ghost(25, 33),
        ConvBnAct(33, 40, stride=2),
        Ghost(40, 51),
    )
    return Case(module, (torch.randn(1, 3, 64, 64),))


def unet_center_crop() -> Case:
    return Case(UNet(), (torch.randn(1, 1, 92, 92),))


def espcn_pixelshuffle() -> Case:
    return Case(SuperResolution(), (torch.randn(1, 3, 64, 64),))


def vae_encoder() -> Case:
    return Case(VAE(), (torch.randn(1, 3, 64, 64), torch.randn(1, 8, 16, 16)))
