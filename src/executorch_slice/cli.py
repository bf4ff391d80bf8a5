# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Command line of the package."""

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from executorch_slice.exit_codes import CommandError, ExitCode


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs ``executorch-slice COMMAND``; returns one of the `ExitCode`s."""
    options = _parser().parse_args(argv)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return int(_run(options))
    except CommandError as error:
        print(f"executorch-slice: {error}", file=sys.stderr)
        return error.code
    except BrokenPipeError:
        sys.stderr.close()  # the reader of the output has seen enough
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="executorch-slice",
        description="What becomes of the copies of an ExecuTorch program.",
        epilog="Exit codes: 0 done; 1 a check failed; 2 wrong usage; 3 a file cannot be"
        " read or written; 4 ExecuTorch cannot lower the program.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser(
        "demo", help="lower three models with and without this package, and compare"
    )

    explain = commands.add_parser(
        "explain", help="say of each copy of a model whether it stays, and why"
    )
    _add_lowering(explain)
    explain.add_argument("--format", choices=("table", "json"), default="table")
    explain.add_argument(
        "--fail-on-copy",
        metavar="REASON",
        action="append",
        default=[],
        help="exit with 1 if a copy stays for this reason; may be given again",
    )

    lower = commands.add_parser("lower", help="lower a model, and say what it costs")
    _add_lowering(lower)
    lower.add_argument(
        "-o", "--output", type=Path, required=True, metavar="MODEL.pte", help="written"
    )

    inspect = commands.add_parser(
        "inspect", help="show how the tensors of any lowered program share memory"
    )
    inspect.add_argument("model", type=Path, metavar="MODEL.pte")
    inspect.add_argument("--json", action="store_true", help="print JSON")

    for command in (explain, lower, inspect):
        command.add_argument(
            "--memory-map",
            type=Path,
            metavar="OUT",
            help="draw the arenas into a .html, .svg or .png; needs matplotlib",
        )
    return parser


def _add_lowering(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "model",
        type=Path,
        metavar="MODEL.pt2",
        help="a program that torch.export.save() wrote",
    )
    command.add_argument(
        "--backend", choices=("xnnpack",), help="delegate to it what it takes"
    )
    command.add_argument(
        "--min-alignment",
        type=_positive,
        default=1,
        metavar="N",
        help="aliases lie at multiples of N bytes only",
    )
    command.add_argument(
        "--memory-growth",
        choices=("never", "allow"),
        default="never",
        help="whether aliases may make an arena larger",
    )
    command.add_argument(
        "--et-slice",
        action="store_true",
        help="slices without an address are et_slice, which the runtime must have",
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _check_files(options: argparse.Namespace) -> None:
    """Raises where the command would overwrite a file that it has read or written."""
    given = [getattr(options, name, None) for name in ("model", "output", "memory_map")]
    paths = [path.resolve() for path in given if path is not None]
    for at, path in enumerate(paths):
        if path in paths[:at]:
            raise CommandError(ExitCode.USAGE, f"{path} is given twice")


def _run(options: argparse.Namespace) -> int:
    """Imports what the command needs, which takes seconds, and runs it."""
    _check_files(options)
    from rich.console import Console

    console = Console(highlight=False)
    if options.command == "demo":
        from executorch_slice.demo import run_demo

        return run_demo(console)
    if options.command == "inspect":
        from executorch_slice.inspect_program import run_inspect

        return run_inspect(options.model, console, options.json, options.memory_map)

    from executorch_slice.explain import run_explain, run_lower
    from executorch_slice.lowering import LoweringOptions

    lowering = LoweringOptions(
        options.backend,
        options.memory_growth,
        options.min_alignment,
        options.et_slice,
    )
    if options.command == "lower":
        return run_lower(
            options.model, options.output, lowering, console, options.memory_map
        )
    return run_explain(
        options.model,
        lowering,
        console,
        options.format == "json",
        options.fail_on_copy,
        options.memory_map,
    )
