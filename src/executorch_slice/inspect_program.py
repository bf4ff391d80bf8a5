# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""The `inspect` command: how the tensors of any `.pte` share memory."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from executorch.exir.schema import ExecutionPlan, Program
from executorch_slice.arena_layout import Arena, arenas, PlannedTensor
from executorch_slice.command_files import read_program
from executorch_slice.cost import copy_calls, CopyCall, SLICE_FAMILY, VIEW_FAMILY
from executorch_slice.exit_codes import ExitCode
from executorch_slice.memory_map import check_can_draw, draw
from executorch_slice.tables import progress, table
from rich.console import Console


def run_inspect(
    model: Path, console: Console, as_json: bool, memory_map: Optional[Path]
) -> ExitCode:
    """Prints the arenas of `model`, their tensors, and the copies that remain."""
    check_can_draw(memory_map)
    with progress(f"reading {model}"):
        program = read_program(model)
        found = {plan.name: arenas(plan, {}) for plan in program.execution_plan}
    if as_json:
        print(json.dumps(_report(model, program, found), indent=2))
    else:
        _print_report(console, program, found)
    if memory_map is not None:
        with progress("drawing"):
            draw({str(model): [a for each in found.values() for a in each]}, memory_map)
    return ExitCode.DONE


def relation(tensor: PlannedTensor, tensors: Mapping[int, PlannedTensor]) -> str:
    """What `tensor` shares bytes with, in words; empty where with nothing."""
    if tensor.root is not None:
        root = tensors[tensor.root]
        offset = tensor.byte_offset - root.byte_offset
        if tensor.nbytes == root.nbytes:
            return f"same bytes as {root.name}"
        return f"inside {root.name}, at byte {offset:,}"
    names = ", ".join(tensors[value].name for value in tensor.reuses)
    return f"reuses {names}" if names else ""


def _copies(plan: ExecutionPlan) -> list[CopyCall]:
    """The kernel calls of a method that copy."""
    return list(copy_calls(plan, SLICE_FAMILY | VIEW_FAMILY))


def _report(
    model: Path, program: Program, found: Mapping[str, list[Arena]]
) -> dict[str, Any]:
    return {
        "model": str(model),
        "methods": [
            {
                "name": plan.name,
                "instructions": sum(len(chain.instructions) for chain in plan.chains),
                "arenas": [_arena_report(arena) for arena in found[plan.name]],
                "copies": [call._asdict() for call in _copies(plan)],
            }
            for plan in program.execution_plan
        ],
    }


def _arena_report(arena: Arena) -> dict[str, Any]:
    tensors = {t.value: t for t in arena.tensors}
    return {
        "index": arena.index,
        "bytes": arena.nbytes,
        "peak_bytes": arena.peak_bytes,
        "peak_instruction": arena.peak_instruction,
        "tensors": [
            {
                "value": t.value,
                "name": t.name,
                "byte_offset": t.byte_offset,
                "bytes": t.nbytes,
                "dtype": t.dtype,
                "sizes": list(t.sizes),
                "first_instruction": t.first,
                "last_instruction": t.last,
                "alias_of": t.root,
                "reuses": list(t.reuses),
                "relation": relation(t, tensors),
            }
            for t in arena.tensors
        ],
    }


def _print_report(
    console: Console, program: Program, found: Mapping[str, list[Arena]]
) -> None:
    if not program.execution_plan:
        console.print("The program has no methods.")
    for plan in program.execution_plan:
        calls = _copies(plan)
        for arena in found[plan.name]:
            _print_arena(console, arena)
        numbers = "instruction", "bytes"
        rows = table("copy that remains", *numbers, right=numbers)
        for call in calls:
            rows.add_row(call.op, str(call.instruction), f"{call.nbytes:,}")
        if calls:
            console.print(rows)
        copied = sum(call.nbytes for call in calls)
        console.print(
            f"{plan.name}: {len(calls):,} copies remain, {copied:,} bytes per inference"
        )


def _print_arena(console: Console, arena: Arena) -> None:
    aliases = sum(t.root is not None for t in arena.tensors)
    console.print(
        f"{arena.method}, arena {arena.index}: {arena.nbytes:,} bytes,"
        f" {len(arena.tensors):,} tensors, {aliases:,} of them aliases;"
        f" {arena.peak_bytes:,} bytes in use at instruction {arena.peak_instruction:,}"
    )
    if aliases:
        console.print("No instruction makes an alias: its bytes are its root's.")
    tensors = {t.value: t for t in arena.tensors}
    headings = "offset", "bytes", "tensor", "instr.", "shares bytes"
    rows = table(*headings, right=headings[:2])
    for t in arena.tensors:
        shape = f"{t.dtype}[{', '.join(map(str, t.sizes))}]"
        rows.add_row(
            f"{t.byte_offset:,}",
            f"{t.nbytes:,}",
            f"{t.name} {shape}",
            f"{t.first}-{t.last}",
            relation(t, tensors),
        )
    console.print(rows)
