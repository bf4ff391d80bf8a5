# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Measures an et_slice against the slice_copy in whose place it stands.

Run as a script, by itself on the machine. Prints Markdown. Programs take slices of 4
rows from an input of dynamic size, which is not copied into the arena, and read one
element of each; others take the row of that element alone. The difference in time, over
the number of slices, is what a slice costs. One thread; all four programs take turns;
medians.
"""

import statistics
import sys
import time
import warnings
from typing import Any

import torch
from bench import use_one_thread
from executorch.exir import to_edge
from executorch.exir.passes.memory_planning_pass import MemoryPlanningPass
from executorch_slice import AliasConfig, ExecutorchBackendConfig
from executorch_slice.compare import LoadedProgram
from executorch_slice.cost import program_cost
from executorch_slice.runtime import load_kernels
from lowering_cost import print_heading, print_row
from torch import nn, Tensor
from torch.export import Dim

SIZES = (64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)
SLICES, ROWS, ITEM = 32, 4, 4
SECONDS = 3.0  # for each size


class Elements(nn.Module):
    """An element of each of many slices of `rows` rows."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows

    def forward(self, x: Tensor) -> Tensor:
        found = []
        for i in range(SLICES):
            start = i % ROWS
            row = x[start : start + 1]
            if self.rows > 1:
                row = x[start : start + self.rows][:1]
            found.append(row[:, :1])
        return torch.cat(found)


def lower(rows: int, nbytes: int, emit_et_slice: bool) -> LoadedProgram:
    x = torch.rand(2 * ROWS, nbytes // ROWS // ITEM)
    shapes = ({0: Dim("rows", min=2 * ROWS, max=4 * ROWS)},)
    exported = torch.export.export(Elements(rows), (x,), dynamic_shapes=shapes)
    config = ExecutorchBackendConfig(
        alias=AliasConfig(memory_growth="allow", emit_et_slice=emit_et_slice),
        memory_planning_pass=MemoryPlanningPass(alloc_graph_input=False),
    )
    manager = to_edge(exported).to_executorch(config)
    copies = program_cost(manager).slice_instructions
    assert (copies == 0) == emit_et_slice, copies
    program = LoadedProgram(manager)
    assert torch.equal(program(x)[0], Elements(rows)(x))
    return program


def seconds(program: LoadedProgram, *inputs: Any) -> float:
    start = time.perf_counter()
    program(*inputs)
    return time.perf_counter() - start


def measure(nbytes: int) -> list[float]:
    """Nanoseconds a slice of `nbytes` bytes takes, copied and as et_slice."""
    programs = [
        lower(rows, nbytes, emit) for emit in (False, True) for rows in (ROWS, 1)
    ]
    x = torch.rand(2 * ROWS, nbytes // ROWS // ITEM)
    times: list[list[float]] = [[] for _ in programs]
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(times[0]) < 15:
        for program, found in zip(programs, times):
            found.append(seconds(program, x))
    medians = [statistics.median(found[len(found) // 10 :]) for found in times]
    return [(medians[i] - medians[i + 1]) / SLICES * 1e9 for i in (0, 2)]


def main() -> int:
    warnings.filterwarnings("ignore")
    use_one_thread()
    load_kernels()
    print_heading("bytes of a slice", "slice_copy, ns", "et_slice, ns")
    for nbytes in SIZES:
        copied, placed = measure(nbytes)
        print_row(f"{nbytes:,}", f"{copied:,.0f}", f"{placed:,.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
