# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Measures what this package changes in the demo models and in the zoo.

Run as a script, by itself on the machine: it also compares times. Ratios are aliased
over stock, the median of pairs taken in turns, so below 1 is a gain.
"""

import argparse
import gc
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import lowering_cost

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import EdgeProgramManager, to_edge, to_edge_transform_and_lower
from executorch_slice.compare import LoadedProgram, lower, lower_stock, outputs_agree
from executorch_slice.cost import program_cost, ProgramCost
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from torch.export import ExportedProgram
from zoo import Case

SECONDS = 0.5  # of pairs for one ratio, at least one pair
COUNTS = {
    "slice_instructions": "slices",
    "instructions": "instructions",
    "bytes_copied": "bytes copied",
    "arena_bytes": "arena bytes",
    "pte_bytes": "pte bytes",
}


@dataclass(frozen=True)
class Result:
    model: str
    pipeline: str
    stock: ProgramCost
    aliased: ProgramCost
    agree: bool
    lowering_ratio: float
    latency_ratio: float


def to_edge_xnnpack(exported: ExportedProgram) -> EdgeProgramManager:
    return to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])


PIPELINES = {"default": to_edge, "xnnpack": to_edge_xnnpack}


def measure(model: str, case: Case, pipeline: str) -> Result:
    exported = torch.export.export(
        case.module, case.inputs, dynamic_shapes=case.dynamic_shapes
    )
    edge = PIPELINES[pipeline](exported)
    stock, aliased = lower_stock(edge), lower(edge)
    before, after = LoadedProgram(stock), LoadedProgram(aliased)
    latency_ratio = run_pairs(lambda: before(*case.inputs), lambda: after(*case.inputs))
    return Result(
        model,
        pipeline,
        program_cost(stock),
        program_cost(aliased),
        outputs_agree(case.module, case.inputs, stock, aliased, runs=2),
        lowering_cost.measure(edge, pairs=3).ratio,
        latency_ratio,
    )


def run_pairs(before: Callable[[], object], after: Callable[[], object]) -> float:
    """Median time of `after` over `before`, in turns that swap order."""
    ratios: list[float] = []
    gc.disable()  # as timeit does
    end = time.perf_counter() + SECONDS
    while not ratios or time.perf_counter() < end:
        seconds: dict[Callable[[], object], float] = {}
        for run in (before, after) if len(ratios) % 2 else (after, before):
            start = time.perf_counter()
            run()
            seconds[run] = time.perf_counter() - start
        ratios.append(seconds[after] / seconds[before])
    gc.enable()
    return statistics.median(ratios)


def print_table(console: Console, pipeline: str, results: list[Result]) -> None:
    table = Table(pipeline, box=SIMPLE, show_footer=True, pad_edge=False)
    for field, heading in COUNTS.items():
        total = [
            sum(getattr(cost, field) for cost in costs)
            for costs in zip(*((r.stock, r.aliased) for r in results))
        ]
        table.add_column(heading, _change(*total), justify="right")
    for heading in ("lowering", "latency"):
        median = statistics.median(getattr(r, f"{heading}_ratio") for r in results)
        table.add_column(heading, f"{median:.2f}", justify="right")
    for r in results:
        table.add_row(
            r.model,
            *(_change(getattr(r.stock, f), getattr(r.aliased, f)) for f in COUNTS),
            f"{r.lowering_ratio:.2f}",
            f"{r.latency_ratio:.2f}",
        )
    console.print(table)


def _change(before: int, after: int) -> str:
    return f"{before:,}" if before == after else f"{before:,} -> {after:,}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--models",
        nargs="+",
        choices=lowering_cost.BUILDERS,
        default=list(lowering_cost.BUILDERS),
        metavar="NAME",
    )
    parser.add_argument("--xnnpack", action="store_true", help="that pipeline as well")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write results here")
    args = parser.parse_args()

    warnings.simplefilter("ignore")
    console = Console(width=160)
    results: list[Result] = []
    for pipeline in PIPELINES if args.xnnpack else ["default"]:
        for name in args.models:
            with console.status(f"{name}, {pipeline} pipeline"):
                results.append(measure(name, lowering_cost.BUILDERS[name](), pipeline))
        print_table(console, pipeline, [r for r in results if r.pipeline == pipeline])
    if args.json:
        args.json.write_text(json.dumps([asdict(r) for r in results], indent=2))
    differing = [f"{r.model} ({r.pipeline})" for r in results if not r.agree]
    if differing:
        console.print(f"Outputs differ: {', '.join(differing)}", style="bold red")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
