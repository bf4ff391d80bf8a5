#!/usr/bin/env python3
# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Draws the memory plan of a small program, stock and with aliases: docs/plan.svg."""

import argparse
from pathlib import Path
from typing import Any, Dict, Iterator, Tuple

import matplotlib.pyplot as plt
import torch
from executorch.exir import ExecutorchProgramManager, memory, to_edge
from executorch.exir.tensor import TensorSpec
from executorch_slice.compare import lower, lower_stock
from executorch_slice.exir.memory import is_alias
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from torch import nn, Tensor
from torch.utils._pytree import tree_leaves

# First node, last node, first byte, bytes.
Box = Tuple[int, int, int, int]
ROOT, ALIAS, KEPT = "#9ecae1", "#08519c", "#fdae6b"


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


def boxes(manager: ExecutorchProgramManager) -> Iterator[Tuple[str, Box, str]]:
    """Name, box and colour of each planned tensor, aliases after their roots."""
    nodes = list(manager.exported_program().graph.nodes)
    index = {node: i for i, node in enumerate(nodes)}
    roots: Dict[int, Tuple[str, TensorSpec, Any]] = {}
    for node in nodes:
        for spec in tree_leaves(node.meta.get("spec")) if not is_alias(node) else ():
            if isinstance(spec, TensorSpec) and spec.mem_offset is not None:
                # An alloc has no name of its own; its kernel comes next.
                known = roots.get(id(spec))
                if known is None or known[2].target is memory.alloc:
                    roots[id(spec)] = (_short(node.name), spec, node)
    for name, spec, _ in roots.values():
        first, last = spec.lifetime
        kept = any(word in name for word in ("slice", "split"))
        colour = KEPT if kept else ROOT
        yield name, (first, last, spec.mem_offset, spec.nbytes()), colour
    for node in filter(is_alias, nodes):
        spec = node.meta["spec"]
        last = max((index[user] for user in node.users), default=index[node])
        box = (index[node], last, spec.mem_offset, spec.nbytes())
        yield _short(node.name), box, ALIAS


def _short(name: str) -> str:
    known = name.removeprefix("aten_").replace("_copy", "").replace("_with_sizes", "")
    return known.replace("_default", "").replace("_tensor", "").replace("_Tensor", "")


def draw(axes: Axes, manager: ExecutorchProgramManager, title: str) -> None:
    (plan,) = manager.executorch_program.execution_plan
    size = sum(plan.non_const_buffer_sizes)
    for name, (first, last, start, nbytes), colour in boxes(manager):
        inset = 0.12 if colour == ALIAS else 0.0
        axes.add_patch(
            Rectangle(
                (first + inset, start),
                last + 1 - first - 2 * inset,
                nbytes,
                facecolor=colour,
                edgecolor="black",
                alpha=0.9,
                linewidth=0.8,
            )
        )
        axes.annotate(
            name,
            (first + inset, start + nbytes),
            (3, -2),
            textcoords="offset points",
            va="top",
            fontsize=7 if nbytes < size / 20 else 8,
            color="white" if colour == ALIAS else "black",
        )
    nodes = len(manager.exported_program().graph.nodes)
    kernels = sum(len(chain.instructions) for chain in plan.chains)
    axes.axhline(size, color="#a50f15", linestyle="--", linewidth=1)
    axes.set(
        title=f"{title}: {kernels} instructions, {size:,} bytes",
        xlabel="node of the lowered graph",
        xlim=(0, nodes),
        ylim=(0, 1.06 * size),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(__file__).with_name("plan.svg")
    parser.add_argument("--out", type=Path, default=default)
    out = parser.parse_args().out
    plt.rcParams["svg.hashsalt"] = "plan"  # the same picture, the same file
    figure, panels = plt.subplots(1, 2, figsize=(13, 5), sharey=True, layout="tight")
    edge = to_edge(torch.export.export(Gated(), (torch.randn(8, 16),)))
    draw(panels[0], lower_stock(edge), "stock")
    draw(panels[1], lower(edge), "with aliases")
    panels[0].set_ylabel("bytes of the arena")
    handles = [Rectangle((0, 0), 1, 1, facecolor=c) for c in (ROOT, ALIAS, KEPT)]
    labels = ["tensor", "alias, in its root", "copy of a slice"]
    panels[1].legend(handles, labels, loc="upper right", fontsize=8)
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    main()
