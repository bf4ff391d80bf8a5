#!/usr/bin/env python3
# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Draws the memory plan of a small program, stock and with aliases: docs/plan.svg."""

import argparse
from pathlib import Path
from typing import Tuple

import torch
from executorch.exir import to_edge
from executorch_slice.compare import lower, lower_stock
from executorch_slice.lowering import program_arenas
from executorch_slice.memory_map import draw
from torch import nn, Tensor


class Gated(nn.Module):
    """A gate on channel halves, and a last row that is read when all is done."""

    def forward(self, x: Tensor) -> Tuple[Tensor, Tensor]:
        y = x.neg()
        value, gate = y.chunk(2)
        mixed = value * torch.sigmoid(gate)
        late = x.sin()
        row = late[-1:]
        wide = late.exp().cos().tanh()
        return mixed.relu() + wide[:4], row.abs()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(__file__).with_name("plan.svg")
    parser.add_argument("--out", type=Path, default=default)
    edge = to_edge(torch.export.export(Gated(), (torch.randn(8, 16),)))
    managers = {"stock": lower_stock(edge), "with aliases": lower(edge)}
    pictures = {title: program_arenas(made) for title, made in managers.items()}
    draw(pictures, parser.parse_args().out)


if __name__ == "__main__":
    main()
