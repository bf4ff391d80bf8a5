# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Networks over columns: tables, and the observations of a robot."""

import torch
from torch import nn, Tensor
from torch.nn import functional as F

from .case import Case


class GaussianPolicy(nn.Module):
    """Soft actor-critic: observation and output are each cut into named columns."""

    def __init__(self, actions: int = 7) -> None:
        super().__init__()
        self.actions = actions
        self.image = nn.Linear(32, 64)
        self.body = nn.Sequential(
            nn.Linear(64 + 16, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()
        )
        self.head = nn.Linear(128, 2 * actions + 4)

    def forward(self, observation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        image, joints = observation[..., :32], observation[..., 32:]
        y = self.head(self.body(torch.cat([F.relu(self.image(image)), joints], -1)))
        a = self.actions
        mean, log_std, aux = y[..., :a], y[..., a : 2 * a], y[..., 2 * a :]
        return torch.tanh(mean + noise * torch.exp(log_std.clamp(-5, 2))), aux.sigmoid()


class DLRM(nn.Module):
    """Recommendation: a column for each category, pairwise products, three tasks."""

    pairs: Tensor

    def __init__(self, categories: int = 6, dim: int = 16) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(
            nn.Embedding(100, dim) for _ in range(categories)
        )
        self.dense = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, dim))
        row, column = torch.tril_indices(categories + 1, categories + 1, -1)
        self.register_buffer("pairs", row * (categories + 1) + column)
        self.top = nn.Sequential(nn.Linear(dim + len(row), 64), nn.ReLU())
        self.tasks = nn.Linear(64, 12)

    def forward(self, dense: Tensor, category: Tensor) -> tuple[Tensor, ...]:
        dense = self.dense(dense)
        sparse = [embed(category[:, i]) for i, embed in enumerate(self.embeddings)]
        vectors = torch.stack([dense, *sparse], 1)
        products = (vectors @ vectors.transpose(1, 2)).flatten(1)[:, self.pairs]
        y = self.tasks(self.top(torch.cat([dense, products], 1)))
        click, buy, like = y.split([4, 4, 4], 1)
        return click.softmax(-1), buy.softmax(-1), like.sigmoid()


def robot_policy_gaussian() -> Case:
    return Case(GaussianPolicy(), (torch.randn(1, 48), torch.randn(1, 7)))


def dlrm_tabular() -> Case:
    return Case(DLRM(), (torch.randn(1, 8), torch.randint(100, (1, 6))))
