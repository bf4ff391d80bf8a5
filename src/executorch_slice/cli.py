# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Command line of the package."""

import argparse
from typing import List, Optional


def main(argv: Optional[List[str]] = None) -> int:
    """Runs ``executorch-slice COMMAND``; returns the exit code."""
    parser = argparse.ArgumentParser(prog="executorch-slice")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser(
        "demo", help="lower three models with and without this package, and compare"
    )
    parser.parse_args(argv)

    from executorch_slice.demo import run_demo
    from rich.console import Console

    return run_demo(Console())
