# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Measures what this package changes at run time, in the demo models and in the zoo.

With transformers installed, in models of Hugging Face too. Run as a script, by itself
on the machine: it also compares times. Prints Markdown, row by row. Latency is aliased
over stock, one thread, the median of pairs taken in turns, so below 1 is a gain; a
second ratio, of stock over stock, shows the noise. The exit status is 1 if an output
differs, or a program has more instructions or a larger arena than stock's.
"""

import argparse
import gc
import json
import math
import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import (
    EdgeProgramManager,
    ExecutorchProgramManager,
    to_edge,
    to_edge_transform_and_lower,
)
from executorch.extension.pybindings.portable_lib import _unsafe_reset_threadpool
from executorch_slice import decisions, disabled
from executorch_slice.compare import ATOL, LoadedProgram, outputs_agree
from executorch_slice.cost import program_cost, ProgramCost
from lowering_cost import BUILDERS, print_heading, print_row
from torch.export import ExportedProgram
from zoo import Case

MODELS = dict(BUILDERS)
if find_spec("transformers") is not None:
    from zoo import hugging_face

    MODELS |= hugging_face.MODELS

LOWERED_BY_NEITHER = {("hiera", "xnnpack")}

LOADS = 7  # of each program, as the address of an arena matters too
SECONDS = 0.3  # of pairs after each, at least three
COUNTS = {
    "slice_instructions": "slices",
    "view_instructions": "views",
    "instructions": "instructions",
    "bytes_copied": "bytes copied",
    "arena_bytes": "arena bytes",
    "pte_bytes": "pte bytes",
}
TIMES = ("latency", "noise")


@dataclass
class Result:
    """What one model costs in one pipeline.

    Attributes:
        gone: copies that move nothing, and that no longer copy; without `view_copy`,
            which stock elides.
        stay: how many of the others there are, by reason.
        latency, noise: aliased over stock, and stock over stock; nan if not measured.
    """

    model: str
    pipeline: str
    stock: ProgramCost
    aliased: ProgramCost
    gone: int
    stay: dict[str, int]
    agree: bool
    latency: float = math.nan
    noise: float = math.nan

    @property
    def is_right(self) -> bool:
        """Whether the outputs agree, and the program is no larger than stock's."""
        return self.agree and all(
            getattr(self.aliased, field) <= getattr(self.stock, field)
            for field in ("instructions", "arena_bytes")
        )

    @property
    def free_copies(self) -> str:
        return f"{self.gone} of {self.gone + sum(self.stay.values())}"


def to_edge_xnnpack(exported: ExportedProgram) -> EdgeProgramManager:
    return to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])


PIPELINES = {"default": to_edge, "xnnpack": to_edge_xnnpack}
ATOLS = {"default": ATOL, "xnnpack": 1e-4}  # between outputs and eager's


def measure(model: str, case: Case, pipeline: str, times: bool) -> Result:
    exported = case.export()
    with disabled():
        stock = PIPELINES[pipeline](exported).to_executorch()
    aliased = PIPELINES[pipeline](exported).to_executorch()
    verdicts = Counter(
        d.reason.name if d.verdict == "copy" else "gone"
        for d in decisions(aliased)
        if d.byte_offset is not None and "view_copy" not in d.op
    )
    result = Result(
        model,
        pipeline,
        program_cost(stock),
        program_cost(aliased),
        verdicts.pop("gone", 0),
        dict(verdicts),
        outputs_agree(
            case.module, case.inputs, stock, aliased, runs=2, atol=ATOLS[pipeline]
        ),
    )
    if times:
        result.latency = latency_ratio(stock, aliased, case)
        result.noise = latency_ratio(stock, stock, case)
    return result


def use_one_thread() -> None:
    torch.set_num_threads(1)
    _unsafe_reset_threadpool(1)


def latency_ratio(
    before: ExecutorchProgramManager, after: ExecutorchProgramManager, case: Case
) -> float:
    """Median time of `after` over `before`, in turns that swap order."""
    return statistics.median(
        run_pairs(LoadedProgram(before), LoadedProgram(after), case)
        for _ in range(LOADS)
    )


def run_pairs(before: LoadedProgram, after: LoadedProgram, case: Case) -> float:
    ratios: list[float] = []
    gc.disable()  # as timeit does
    end = time.perf_counter() + SECONDS
    while len(ratios) < 3 or time.perf_counter() < end:
        seconds: dict[LoadedProgram, float] = {}
        for program in (before, after) if len(ratios) % 2 else (after, before):
            start = time.perf_counter()
            program(*case.inputs)
            seconds[program] = time.perf_counter() - start
        ratios.append(seconds[after] / seconds[before])
    gc.enable()
    return statistics.median(ratios)


def print_result(r: Result, times: Sequence[str]) -> None:
    changes = (change(getattr(r.stock, f), getattr(r.aliased, f)) for f in COUNTS)
    ratios = (f"{getattr(r, field):.3f}" for field in times)
    print_row(r.model, *changes, r.free_copies, *ratios)


def print_totals(results: list[Result], times: Sequence[str]) -> None:
    sums = [
        [sum(getattr(cost, field) for cost in costs) for field in COUNTS]
        for costs in zip(*((r.stock, r.aliased) for r in results))
    ]
    medians = (statistics.median(getattr(r, f) for r in results) for f in times)
    ratios = (f"{median:.3f}" for median in medians)
    gone, stay = sum(r.gone for r in results), Counter[str]()
    for r in results:
        stay.update(r.stay)
    free = f"{gone} of {gone + stay.total()}"
    name = "all (sums, median ratios)" if times else "all"
    print_row(name, *map(change, *sums), free, *ratios)
    print("\nFree copies that stay:", dict(stay) or "none")


def change(before: int, after: int) -> str:
    return f"{before:,}" if before == after else f"{before:,} -> {after:,}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--models",
        nargs="+",
        choices=MODELS,
        default=list(MODELS),
        metavar="NAME",
    )
    parser.add_argument(
        "--pipelines", nargs="+", choices=PIPELINES, default=list(PIPELINES)
    )
    parser.add_argument(
        "--no-times", dest="times", action="store_false", help="only count"
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="write results here")
    args = parser.parse_args()

    warnings.simplefilter("ignore")
    use_one_thread()
    times = TIMES if args.times else ()
    results: list[Result] = []
    for pipeline in args.pipelines:
        last = ("free copies gone", *times)
        print_heading(f"{pipeline} pipeline", *COUNTS.values(), *last)
        done = []
        for name in args.models:
            if (name, pipeline) in LOWERED_BY_NEITHER:
                continue
            done.append(measure(name, MODELS[name](), pipeline, args.times))
            print_result(done[-1], times)
        print_totals(done, times)
        print()
        results += done
    if args.json:
        args.json.write_text(json.dumps([asdict(r) for r in results], indent=2))
    wrong = [f"{r.model} ({r.pipeline})" for r in results if not r.is_right]
    if wrong:
        print(f"Outputs differ, or more than stock's: {', '.join(wrong)}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
