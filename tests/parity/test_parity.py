# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""ExecuTorch's own tests pass and fail as they do without this package.

This is the part that fits in CI; ``make parity`` compares the whole suites.
"""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("compare_suites.py")
SUITES = (
    "executorch.exir.tests.test_remove_view_copy",
    "executorch.exir.tests.test_memory_planning",
)
SUITE_THAT_DIFFERS = """
import sys
import executorch.exir

def test_same():
    assert True

def test_differs():
    assert "executorch_slice" not in sys.modules
"""


def compare(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *args],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_executorch_suites_are_unaffected() -> None:
    result = compare("--together", *SUITES)
    assert result.returncode == 0, result.stdout


def test_a_difference_is_found(tmp_path: Path) -> None:
    (tmp_path / "suite_that_differs.py").write_text(SUITE_THAT_DIFFERS)
    result = compare("suite_that_differs", "-n", "0", PYTHONPATH=str(tmp_path))
    assert result.returncode == 1, result.stdout
    assert "suite_that_differs::test_differs: passed -> failed" in result.stdout
    assert "ERROR: unexpected" in result.stdout and "1 errors" in result.stdout
