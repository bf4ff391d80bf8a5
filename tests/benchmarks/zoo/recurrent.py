# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Recurrent networks, by `torch.nn` and by hand."""

import torch
from torch import nn, Tensor

from .case import Case


class LastStep(nn.Module):
    """Classifies the last step of a recurrent network's output."""

    def __init__(self, rnn: nn.RNNBase) -> None:
        super().__init__()
        self.rnn = rnn
        self.head = nn.Linear(rnn.hidden_size, 10)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.rnn(x)
        return self.head(y[:, -1] if self.rnn.batch_first else y[-1])


class LSTMCellLoop(nn.Module):
    """An LSTM by hand: one projection for four gates, a select for each step."""

    def __init__(self, features: int = 40, hidden: int = 64) -> None:
        super().__init__()
        self.hidden = hidden
        self.input = nn.Linear(features, 4 * hidden)
        self.state = nn.Linear(hidden, 4 * hidden)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], self.hidden)
        c = x.new_zeros(x.shape[0], self.hidden)
        states = []
        for t in range(x.shape[1]):
            i, f, g, o = (self.input(x[:, t]) + self.state(h)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            states.append(h)
        return torch.stack(states, 1)


def nn_lstm() -> Case:
    rnn = nn.LSTM(40, 64, num_layers=2, batch_first=True)
    return Case(LastStep(rnn), (torch.randn(1, 16, 40),))


def nn_gru_time_major() -> Case:
    return Case(LastStep(nn.GRU(40, 64)), (torch.randn(16, 1, 40),))


def lstm_cell_loop() -> Case:
    return Case(LSTMCellLoop(), (torch.randn(1, 16, 40),))


def lstm_cell_loop_b4() -> Case:
    return Case(LSTMCellLoop(), (torch.randn(4, 16, 40),))
