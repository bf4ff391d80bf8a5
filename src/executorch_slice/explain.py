# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""The `explain` and `lower` commands: what becomes of a saved program's copies."""

import json
from pathlib import Path
from typing import Optional

from executorch_slice import decisions
from executorch_slice.command_files import read_exported, writing
from executorch_slice.cost import program_cost
from executorch_slice.exir.alias_decision import Decisions, FREE, Reason
from executorch_slice.exit_codes import CommandError, ExitCode
from executorch_slice.lowering import (
    lower_aliased,
    lower_without_aliases,
    LoweringOptions,
    program_arenas,
    run_on_examples,
    to_edge_program,
)
from executorch_slice.memory_map import check_can_draw, draw
from executorch_slice.tables import add_costs, cost_table, progress, table
from rich.console import Console


def run_explain(
    model: Path,
    options: LoweringOptions,
    console: Console,
    as_json: bool,
    fail_on_copy: list[str],
    memory_map: Optional[Path],
) -> ExitCode:
    """Prints what becomes of each copy of `model`, and why.

    Returns:
        FAILED_CHECK where a copy stays for one of the reasons `fail_on_copy`.
    """
    reasons = [reason.name for reason in Reason if reason not in FREE]
    unknown = set(fail_on_copy) - set(reasons)
    if unknown:
        known = ", ".join(reasons)
        raise CommandError(
            ExitCode.USAGE,
            f"no reason to stay: {', '.join(sorted(unknown))}. Known: {known}",
        )
    check_can_draw(memory_map)
    with progress(f"reading {model}"):
        exported = read_exported(model)
    with progress("lowering"):
        manager = lower_aliased(to_edge_program(exported, options), options)
    found = decisions(manager)
    if as_json:
        print(json.dumps({"model": str(model), **found.to_dict()}, indent=2))
    else:
        _print_decisions(console, found)
    if memory_map is not None:
        with progress("drawing"):
            draw({str(model): program_arenas(manager)}, memory_map)
    failing = [
        d for d in found if d.verdict == "copy" and d.reason.name in fail_on_copy
    ]
    if failing:
        first = f"{failing[0].node} ({failing[0].reason.name})"
        message = f"--fail-on-copy: {len(failing):,} stay, the first is {first}"
        raise CommandError(ExitCode.FAILED_CHECK, message)
    return ExitCode.DONE


def run_lower(
    model: Path,
    out: Path,
    options: LoweringOptions,
    console: Console,
    memory_map: Optional[Path],
) -> ExitCode:
    """Lowers `model` to `out`, and prints what it costs in stock and here."""
    check_can_draw(memory_map)
    with progress(f"reading {model}"):
        exported = read_exported(model)
    with progress("lowering with and without aliases"):
        edge = to_edge_program(exported, options)
        stock = lower_without_aliases(edge)
        aliased = lower_aliased(edge, options)
    with progress("running"):
        outcome = run_on_examples(exported, stock, aliased)
    with writing(out):
        out.write_bytes(aliased.buffer)
    costs = cost_table()
    add_costs(costs, out.name, program_cost(stock), program_cost(aliased))
    console.print(costs)
    console.print(f"Memory plan proven; {outcome}.")
    console.print(decisions(aliased).summary())
    if memory_map is not None:
        with progress("drawing"):
            pictures = {
                "stock": program_arenas(stock),
                "aliased": program_arenas(aliased),
            }
            draw(pictures, memory_map)
    return ExitCode.DONE


def _print_decisions(console: Console, found: Decisions) -> None:
    columns = "node", "verdict", "reason", "bytes", "line of the model"
    rows = table(*columns, right=("bytes",))
    for d in found:
        cells = d.node, d.verdict, d.reason.name, f"{d.nbytes:,}", d.source
        rows.add_row(*cells, style="yellow" if d.verdict == "copy" else None)
    if found:
        console.print(rows)
    for reason in dict.fromkeys(d.reason for d in found if d.verdict != "alias"):
        console.print(f"{reason.name}: {reason}")
    console.print(found.summary())
