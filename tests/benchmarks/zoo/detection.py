# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Networks that find or fit objects: boxes, points, poses."""

from collections.abc import Sequence

import torch
from torch import nn, Tensor
from torch.nn import functional as F

from .case import Case, ConvBnAct


class C2f(nn.Module):
    """YOLOv8: a split in two, a chain of bottlenecks on one half, all joined."""

    def __init__(self, inputs: int, outputs: int, bottlenecks: int = 1) -> None:
        super().__init__()
        self.half = half = outputs // 2
        self.split = ConvBnAct(inputs, 2 * half, 1)
        self.chain = nn.ModuleList(
            nn.Sequential(ConvBnAct(half, half), ConvBnAct(half, half))
            for _ in range(bottlenecks)
        )
        self.join = ConvBnAct((2 + bottlenecks) * half, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.split(x).split((self.half, self.half), 1))
        for bottleneck in self.chain:
            parts.append(parts[-1] + bottleneck(parts[-1]))
        return self.join(torch.cat(parts, 1))


class YoloHead(nn.Module):
    """YOLOv8: boxes as a distribution of distances to an anchor's four sides."""

    anchors: Tensor
    strides: Tensor
    bins: Tensor

    def __init__(self, channels: Sequence[int], classes: int = 8, bins: int = 8):
        super().__init__()
        self.sizes = (4 * bins, classes)
        self.box = nn.ModuleList(nn.Conv2d(c, 4 * bins, 1) for c in channels)
        self.score = nn.ModuleList(nn.Conv2d(c, classes, 1) for c in channels)
        self.register_buffer("bins", torch.arange(bins).float().view(1, bins, 1, 1))
        anchors, strides = [], []
        for stride, size in ((8, 8), (16, 4)):
            y, x = torch.meshgrid(2 * [torch.arange(size) + 0.5], indexing="ij")
            anchors.append(torch.stack([x.flatten(), y.flatten()]))
            strides.append(torch.full((1, size * size), float(stride)))
        self.register_buffer("anchors", torch.cat(anchors, 1)[None])
        self.register_buffer("strides", torch.cat(strides, 1))

    def forward(self, levels: Sequence[Tensor]) -> Tensor:
        batch = levels[0].shape[0]
        maps = [
            torch.cat([box(x), score(x)], 1).view(batch, sum(self.sizes), -1)
            for x, box, score in zip(levels, self.box, self.score)
        ]
        box, score = torch.cat(maps, 2).split(self.sizes, 1)
        bins = box.view(batch, 4, self.bins.shape[1], -1).transpose(1, 2).softmax(1)
        before, after = (bins * self.bins).sum(1).chunk(2, 1)
        low, high = self.anchors - before, self.anchors + after
        centre, size = (low + high) / 2 * self.strides, (high - low) * self.strides
        return torch.cat([centre, size, score.sigmoid()], 1)


class Yolo(nn.Module):
    """A YOLOv8-like detector with two levels."""

    def __init__(self) -> None:
        super().__init__()
        self.level8 = nn.Sequential(
            ConvBnAct(3, 16, stride=2),
            ConvBnAct(16, 32, stride=2),
            C2f(32, 32),
            ConvBnAct(32, 64, stride=2),
            C2f(64, 64, 2),
        )
        self.level16 = nn.Sequential(
            ConvBnAct(64, 96, stride=2), C2f(96, 96, 2), ConvBnAct(96, 96, 1)
        )
        self.head = YoloHead([64, 96])

    def forward(self, x: Tensor) -> Tensor:
        level8 = self.level8(x)
        return self.head([level8, self.level16(level8)])


class BoxHead(nn.Module):
    """R-CNN: moves proposed boxes by what their features say, keeps the first 50."""

    def __init__(self, features: int = 64, classes: int = 5) -> None:
        super().__init__()
        self.hidden = nn.Linear(features, 64)
        self.delta = nn.Linear(64, 4 * classes)
        self.score = nn.Linear(64, classes)

    def forward(self, features: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
        hidden = F.relu(self.hidden(features))
        delta = self.delta(hidden)
        width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
        x, y = boxes[:, 0] + 0.5 * width, boxes[:, 1] + 0.5 * height
        dx, dy = delta[:, 0::4] / 10, delta[:, 1::4] / 10
        dw, dh = delta[:, 2::4] / 5, delta[:, 3::4] / 5
        x, y = dx * width[:, None] + x[:, None], dy * height[:, None] + y[:, None]
        width = torch.exp(dw.clamp(max=4.1)) * width[:, None]
        height = torch.exp(dh.clamp(max=4.1)) * height[:, None]
        low = [x - 0.5 * width, y - 0.5 * height]
        high = [x + 0.5 * width, y + 0.5 * height]
        corners = torch.stack(low + high, 2)
        scores = self.score(hidden).softmax(-1)[:, 1:]
        return corners[:50].flatten(1), scores[:50] * 1.0


class PointNet(nn.Module):
    """PointNet: positions and features of points in, a translation and rotation out."""

    def __init__(self) -> None:
        super().__init__()
        self.points = nn.Sequential(
            nn.Conv1d(6, 32, 1), nn.ReLU(), nn.Conv1d(32, 64, 1)
        )
        self.pose = nn.Linear(64, 7)

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor]:
        xyz, features = points[..., :3], points[..., 3:]
        centred = torch.cat([xyz - xyz.mean(1, keepdim=True), features], -1)
        pose = self.pose(self.points(centred.transpose(1, 2)).amax(2))
        move, turn = pose[:, :3], F.normalize(pose[:, 3:], dim=-1)
        w, x, y, z = turn[:, 0], turn[:, 1], turn[:, 2], turn[:, 3]
        row = [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)]
        return move + xyz.mean(1), torch.stack(row, -1)


def yolov8_like() -> Case:
    return Case(Yolo(), (torch.randn(1, 3, 64, 64),))


def rcnn_bbox_decode() -> Case:
    return Case(BoxHead(), (torch.randn(100, 64), torch.rand(100, 4)))


def pointnet_xyz() -> Case:
    return Case(PointNet(), (torch.randn(1, 256, 6),))
