# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""What commands show: tables no wider than the terminal, and that they are at work."""

from executorch_slice.cost import ProgramCost
from rich.box import SIMPLE
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table


def table(*headings: str, right: tuple[str, ...] = ()) -> Table:
    """A table whose `right` headings stand over numbers."""
    made = Table(box=SIMPLE, pad_edge=False)
    for heading in headings:
        made.add_column(heading, overflow="fold")
        made.columns[-1].justify = "right" if heading in right else "left"
    return made


def progress(what: str) -> Live:
    """Shows that something takes long, on a terminal only.

    What the runtime prints meanwhile is not redirected: it comes in parts of lines.
    """
    return Live(
        Spinner("dots", what, style="green"),
        console=Console(stderr=True),
        refresh_per_second=12.5,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )


def cost_table() -> Table:
    """A table of what programs cost before and after, which `add_costs` fills."""
    numbers = "slices", "views", "instructions", "KiB copied", "arena KiB"
    return table("stock -> aliased", *numbers, right=numbers)


def add_costs(made: Table, name: str, before: ProgramCost, after: ProgramCost) -> None:
    made.add_row(
        name,
        f"{before.slice_instructions} -> {after.slice_instructions}",
        f"{before.view_instructions} -> {after.view_instructions}",
        f"{before.instructions} -> {after.instructions}",
        _kib(before.bytes_copied, after.bytes_copied),
        _kib(before.arena_bytes, after.arena_bytes),
    )


def _kib(before: int, after: int) -> str:
    return f"{before / 1024:.0f} -> {after / 1024:.0f}"
