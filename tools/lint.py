# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Runs the linters of .lintrunner.toml without lintrunner; `--fix` formats first."""

import argparse
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TREE = ["backends", "exir", "kernels", "util"]
SOURCES = [*TREE, "docs", "src", "tests", "tools", "setup.py"]
CPP = ["examples", "kernels"]


def package_of_links() -> Path:
    """A folder that shows the checkout as the package that setup.py makes of it."""
    package = ROOT / "build" / "lint" / "executorch_slice"
    package.mkdir(parents=True, exist_ok=True)
    for link in package.iterdir():
        link.unlink()
    sources = [*(ROOT / "src" / package.name).iterdir(), *(ROOT / t for t in TREE)]
    for source in sources:
        (package / source.name).symlink_to(source)
    return package


def is_cpp(path: Path) -> bool:
    return path.suffix in (".cpp", ".h")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fix", action="store_true", help="format in place")
    fix = parser.parse_args().fix
    package = package_of_links()
    python = [sys.executable, "-m"]
    clang_format = str(Path(sysconfig.get_path("scripts"), "clang-format"))
    cpp = [str(f) for t in CPP for f in sorted((ROOT / t).rglob("*")) if is_cpp(f)]
    commands = [
        [clang_format, *(["-i"] if fix else ["--dry-run", "-Werror"]), *cpp],
        [*python, "ufmt", "format" if fix else "check", *SOURCES],
        [*python, "flake8", *SOURCES],
        [*python, "mypy", "-p", package.name],
        [*python, "mypy", "docs", "tests", "tools"],
    ]
    tests = ROOT / "tests"
    paths = [package.parent, tests, tests / "benchmarks", tests / "fuzz"]
    env = dict(os.environ, MYPYPATH=":".join(map(str, paths)))
    failed = [c for c in commands if subprocess.run(c, cwd=ROOT, env=env).returncode]
    for command in failed:
        print("failed:", " ".join(command), file=sys.stderr)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
