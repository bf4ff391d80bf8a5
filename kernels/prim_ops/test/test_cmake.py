# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Builds with CMake, and runs, the C++ tests and the C++ example."""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from alias_testing import arange
from et_slice_programs import et_slice_program
from torch.export import Dim

ROOT = Path(__file__).resolve().parents[3]
GOOGLETEST = Path(sys.prefix, "src", "gtest_vendor")

pytestmark = pytest.mark.skipif(
    not (shutil.which("cmake") and shutil.which("c++")),
    reason="needs CMake and a C++ compiler",
)


def build(source: Path, folder: Path) -> None:
    executorch = find_spec("executorch")
    assert executorch and executorch.submodule_search_locations
    run(
        *("cmake", "-S", str(source), "-B", str(folder)),
        f"-Dexecutorch_DIR={executorch.submodule_search_locations[0]}/share/cmake",
        *([f"-DET_SLICE_GTEST_DIR={GOOGLETEST}"] if GOOGLETEST.exists() else []),
        "--no-warn-unused-cli",
    )
    run("cmake", "--build", str(folder))


def run(*command: str) -> str:
    result = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert result.returncode == 0, result.stdout
    return result.stdout


def test_kernels(tmp_path: Path) -> None:
    build(ROOT / "kernels" / "prim_ops", tmp_path)
    for name in ("et_slice_test", "et_slice_sanitizer_test"):
        print(run(str(tmp_path / "test" / name)))


def test_example(tmp_path: Path) -> None:
    rows = {0: Dim("rows", min=4, max=16)}
    program = et_slice_program(
        lambda x: (x[1:-1] + 1, x[-1] * 2), (arange(6, 2),), (rows,)
    )
    (tmp_path / "model.pte").write_bytes(program)
    build(ROOT / "examples" / "cpp", tmp_path)
    printed = run(str(tmp_path / "run_program"), str(tmp_path / "model.pte"), "4", "5")
    assert printed.splitlines() == [
        "2 2 : 3 4 5 6",
        "2 : 12 14",
        "3 2 : 3 4 5 6 7 8",
        "2 : 16 18",
    ]
