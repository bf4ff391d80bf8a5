# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""The `executorch-slice demo` command: three models, lowered with and without."""

import warnings

import torch
from executorch.exir import ExecutorchProgramManager, to_edge
from executorch_slice import decisions
from executorch_slice.compare import lower, lower_stock, outputs_agree
from executorch_slice.cost import program_cost
from executorch_slice.demo_models import MODELS
from executorch_slice.tables import add_costs, cost_table, progress
from rich.console import Console

RUNS = 4


def run_demo(console: Console) -> int:
    """Prints what the demo models cost before and after; 1 if an output differs."""
    table = cost_table()
    programs: dict[str, ExecutorchProgramManager] = {}
    differing: list[str] = []
    for name, build in MODELS.items():
        with warnings.catch_warnings(), progress(f"lowering {name} twice"):
            warnings.simplefilter("ignore")
            module, inputs = build()
            edge = to_edge(torch.export.export(module, inputs))
            stock, aliased = lower_stock(edge), lower(edge)
            if not outputs_agree(module, inputs, stock, aliased, RUNS):
                differing.append(name)
        programs[name] = aliased
        add_costs(table, name, program_cost(stock), program_cost(aliased))
    console.print(table)
    _print_stayed(console, programs)
    if differing:
        console.print(f"Outputs differ: {', '.join(differing)}", style="bold red")
        return 1
    console.print(
        f"Outputs on {RUNS} inputs each: equal to stock's bit for bit,"
        " and to eager PyTorch's within float32 rounding."
    )
    return 0


def _print_stayed(
    console: Console, programs: dict[str, ExecutorchProgramManager]
) -> None:
    """For each model, how many copies stayed, and why."""
    for name, program in programs.items():
        stayed: dict[tuple[str, str], list[int]] = {}
        for decision in decisions(program):
            if decision.verdict in ("copy", "kernel"):
                key = decision.op, decision.explanation
                stayed.setdefault(key, []).append(decision.nbytes)
        for (op, why), nbytes in stayed.items():
            console.print(
                f"{name}: {len(nbytes)} {op} ({sum(nbytes):,} bytes) stay: {why}",
                highlight=False,
                soft_wrap=True,
            )
    console.print()
