#!/usr/bin/env python3
# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Compares ExecuTorch's own installed test suites with and without this package.

Each suite runs twice: as stock ExecuTorch, with PyTorch's autoload switched off, and
with this package joined to it. A test whose outcome differs is run once more on both
sides. The exit status is 0 if what then still differs is exactly what
``EXPECTED_DIFFERENCES`` lists for these suites, and 1 otherwise.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

PACKAGE = "executorch_slice"
SUITES = (
    "executorch.exir.tests",
    "executorch.exir.emit.test",
    "executorch.exir.backend.test",
    "executorch.backends.xnnpack.test.ops",
    "executorch.backends.xnnpack.test.passes",
    "executorch.backends.xnnpack.test.test_xnnpack_partitioner",
)
AUTOLOAD = {"without": "0", "with": "1"}  # side -> TORCH_DEVICE_BACKEND_AUTOLOAD
SIDES = tuple(AUTOLOAD)

# Test id -> "outcome without -> outcome with: reason". Only for tests that assert what
# this package is there to change.
EXPECTED_DIFFERENCES: dict[str, str] = {
    "executorch.backends.xnnpack.test.ops.test_slice_copy::"
    "TestSliceCopy::test_fp32_slice_copy_stride_non_1": (
        "passed -> failed: it asserts that a slice with a step is not delegated"
    ),
}

EVIDENCE = "PARITY_EVIDENCE_DIR"  # where the pytest hook below leaves its files
TEST_TIMEOUT = 300  # seconds; then the worker is ended and the test has failed
FINISHED = (0, 1)  # pytest's exit status if all passed, or some failed

# Lowers a slice whose copy this package removes, and tells whether it was removed.
PROBE = f"""
import importlib.util, json, pathlib, sys
import executorch.exir
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return (x + x)[0:1] * 2

program = torch.export.export(Model(), (torch.ones(2, 8),))
program = executorch.exir.to_edge(program).to_executorch().executorch_program
plan = program.execution_plan[0]
package = sys.modules.get({PACKAGE!r})
roots = {{}}
for suite in sys.argv[1:]:
    spec = importlib.util.find_spec(suite.split("::")[0].split(".")[0])
    paths = spec and (spec.submodule_search_locations or [spec.origin])
    roots[suite] = str(pathlib.Path(list(paths)[0]).parent) if paths else None
print(json.dumps({{
    "imported": package is not None,
    "enabled": package is not None and package.is_enabled(),
    "joined": "slice_copy" not in " ".join(op.name for op in plan.operators),
    "roots": roots,
}}))
"""


class ParityError(Exception):
    """The comparison could not be made."""


@dataclass(frozen=True)
class Outcome:
    """What became of one test; of its subtests, if it has any, the worst."""

    kind: str
    details: tuple[str, ...] = ()  # why it failed or was skipped, once a subtest

    def __str__(self) -> str:
        return self.kind


MISSING = Outcome("missing")


@dataclass
class Run:
    """One suite, or some of its tests, on one side."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


# This file is also a pytest plugin, which `run_tests` loads into each process.


def pytest_runtest_setup() -> None:
    """Gives a test the same random numbers on both sides, whatever ran before it."""
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


def pytest_sessionfinish() -> None:
    """Leaves evidence of whether the package was active where tests have just run."""
    if "executorch.exir" in sys.modules:
        package = sys.modules.get(PACKAGE)
        active = package is not None and package.is_enabled()
        joined = active and f"{PACKAGE}.seams" in sys.modules
        evidence = {"imported": package is not None, "joined": joined}
        path = Path(os.environ[EVIDENCE], f"{os.getpid()}.json")
        path.write_text(json.dumps(evidence))


def environment(side: str) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    env["TORCH_DEVICE_BACKEND_AUTOLOAD"] = AUTOLOAD[side]
    env["PYTHONHASHSEED"] = "0"  # sets iterate alike on both sides
    return env


def probe(side: str, suites: list[str], cwd: Path) -> dict[str, Optional[str]]:
    """Checks that a fresh process is on this side.

    Returns:
        Suite -> the folder of ``sys.path`` that holds it.
    """
    result = subprocess.run(
        [sys.executable, "-c", PROBE, *suites],
        cwd=cwd,
        env=environment(side),
        capture_output=True,
        text=True,
    )
    if result.returncode:
        raise ParityError(f"probe {side} {PACKAGE} failed:\n{result.stderr}")
    found = json.loads(result.stdout.splitlines()[-1])
    roots: dict[str, Optional[str]] = found.pop("roots")
    expected = dict.fromkeys(found, side == "with")
    if found != expected:
        raise ParityError(
            f"run {side} {PACKAGE}: it must be {expected}, but is {found}\n"
            + result.stderr
        )
    return roots


def run_tests(
    tests: list[str], side: str, root: Path, folder: Path, workers: int, timeout: float
) -> Run:
    """Runs tests of the modules below `root`; `folder` keeps what pytest writes."""
    for name in ("cwd", "plugin", "evidence"):
        (folder / name).mkdir(parents=True)
    shutil.copy(__file__, folder / "plugin")
    env = environment(side)
    env["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(folder / "plugin"), env.get("PYTHONPATH")])
    )
    env[EVIDENCE] = str(folder / "evidence")
    command = [
        *(sys.executable, "-m", "pytest", "-q", "--pyargs", *tests),
        *("-c", os.devnull, "--rootdir", str(root)),
        *("-o", "consider_namespace_packages=true"),
        *("-o", f"faulthandler_timeout={TEST_TIMEOUT}"),
        *("-o", "faulthandler_exit_on_timeout=true"),
        *("--continue-on-collection-errors", "--disable-warnings"),
        *("-p", "no:cacheprovider", "-p", Path(__file__).stem),
        *(("-n", str(workers), "--dist", "loadfile") if workers else ()),
        *("--basetemp", str(folder / "tmp")),
        *("--junitxml", str(folder / "junit.xml")),
    ]
    run = Run()
    start = time.monotonic()
    with open(folder / "pytest.log", "w") as log:
        process = subprocess.Popen(
            command,
            cwd=folder / "cwd",
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status: Optional[int] = process.wait(timeout)
        except subprocess.TimeoutExpired:
            status = None
            run.problems.append(f"not finished within {timeout:.0f} s")
            process.send_signal(signal.SIGINT)  # pytest still writes its report
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                pass
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # also what workers left behind
            except ProcessLookupError:
                pass
            process.wait()
    run.seconds = time.monotonic() - start
    if status is not None and status not in FINISHED:
        run.problems.append(f"pytest ended with status {status}")
    if (folder / "junit.xml").exists():
        run.outcomes = read_outcomes(folder / "junit.xml", root)
    if not run.outcomes:
        run.problems.append("no test was run")
    run.problems += check_evidence(side, folder / "evidence")
    if run.problems:
        tail = (folder / "pytest.log").read_text(errors="replace").splitlines()[-30:]
        run.problems.append("its output ends with:\n    " + "\n    ".join(tail))
    return run


def check_evidence(side: str, folder: Path) -> list[str]:
    """The processes of a run that were not on its side."""
    files = sorted(folder.iterdir())
    expected = dict.fromkeys(("imported", "joined"), side == "with")
    wrong = {f.stem: e for f in files if (e := json.loads(f.read_text())) != expected}
    problems = [f"{PACKAGE} in process {pid}: {found}" for pid, found in wrong.items()]
    return problems if files else [f"no process told whether it had {PACKAGE}"]


def read_outcomes(junit: Path, root: Path) -> dict[str, Outcome]:
    """Test id, as ``--pyargs`` takes it -> outcome.

    A module that cannot be collected counts as one test with the kind "uncollected",
    for which every worker gives its reason.
    """
    outcomes = {}
    for case in ElementTree.parse(junit).iter("testcase"):
        name, classname = case.get("name", ""), case.get("classname", "")
        kinds, details = {"passed"}, []
        for child in case:
            message = child.get("message") or ""
            if message == "collection failure":
                kinds.add("uncollected")
                message = last_error(child.text or "")
            elif child.tag == "failure":
                kinds.add("failed")
            elif child.tag == "error":
                kinds.add("error")
            elif child.tag == "skipped":
                xfail = child.get("type") == "pytest.xfail"
                kinds.add("xfailed" if xfail else "skipped")
            else:  # captured output, properties
                continue
            details.append(normalize(message))
        kind = next(kind for kind in WORST_FIRST if kind in kinds)
        test = test_id(root, classname, name)
        reasons = set(details) if kind == "uncollected" else details
        outcomes[test] = Outcome(kind, tuple(sorted(reasons)))
    return outcomes


WORST_FIRST = ("uncollected", "error", "failed", "xfailed", "skipped", "passed")
COLUMNS = tuple(reversed(WORST_FIRST))


def test_id(root: Path, classname: str, name: str) -> str:
    """``package.module::Class::test[parameter]`` out of JUnit's dotted names."""
    if not classname:  # pytest could not collect the module `name`
        return name
    parts = classname.split(".")
    module = next(
        (
            length
            for length in range(1, len(parts) + 1)
            if root.joinpath(*parts[:length]).with_suffix(".py").is_file()
        ),
        len(parts),
    )
    return "::".join([".".join(parts[:module]), *parts[module:], name])


def last_error(text: str) -> str:
    """The exception at the end of pytest's traceback."""
    errors = re.findall(r"^E\s+([\w.]+(?:Error|Exception|Exit)\b.*)", text, re.M)
    return str(errors[-1]) if errors else text


def normalize(message: str) -> str:
    """The first line of a message, less what differs from run to run."""
    line = next(iter(message.strip().splitlines()), "")
    line = re.sub(r"0x[0-9a-f]{6,}", "0x…", line)  # addresses, but not error codes
    line = re.sub(r"/tmp/[^\s'\"]+", "/tmp/…", line)
    return re.sub(r"\bgw\d+\b", "gw…", line)


def differences(runs: dict[str, Run]) -> dict[str, tuple[Outcome, Outcome]]:
    """Test id -> its outcomes without and with, where they differ.

    Of a test that fails on both sides, the messages are compared as well.
    """
    without, with_ = (runs[side].outcomes for side in SIDES)
    pairs = {
        test: (without.get(test, MISSING), with_.get(test, MISSING))
        for test in sorted({*without, *with_})
    }
    return {test: pair for test, pair in pairs.items() if pair[0] != pair[1]}


def selections(differing: dict[str, tuple[Outcome, Outcome]]) -> list[str]:
    """What to pass to pytest to run these tests again.

    pytest runs nothing at all if it cannot find one of them: where that may be, the
    whole module is selected.
    """
    risky = {"missing", "uncollected"}
    selected = {
        test.split("::")[0] if risky & {str(outcome) for outcome in pair} else test
        for test, pair in differing.items()
    }
    return sorted(
        test
        for test in selected
        if "::" not in test or test.split("::")[0] not in selected
    )


def still_differing(
    differing: dict[str, tuple[Outcome, Outcome]], again: dict[str, Run]
) -> dict[str, tuple[Outcome, Outcome]]:
    """The differences less those that are gone now, which it prints."""
    still = differences(again)
    for test in list(differing):
        if test in still:
            differing[test] = still[test]
        elif any(test in run.outcomes for run in again.values()):
            print(f"  flaky       {test}: {describe(differing.pop(test))}")
    return differing


def describe(pair: tuple[Outcome, Outcome]) -> str:
    text = f"{pair[0]} -> {pair[1]}"
    for side, outcome, other in zip(SIDES, pair, reversed(pair)):
        new = Counter(outcome.details) - Counter(other.details)
        for detail, count in sorted(new.items()):
            times = f" ({count} times)" if count > 1 else ""
            text += f"\n      {side}: {detail[:300]}{times}"
    return text


def judge(
    differing: dict[str, tuple[Outcome, Outcome]],
    expected: dict[str, str],
    suites: list[str],
) -> list[str]:
    """Prints each difference and returns what is wrong with it."""
    errors = []
    for test, pair in differing.items():
        direction, _, reason = expected.get(test, "").partition(": ")
        if direction == f"{pair[0]} -> {pair[1]}":
            print(f"  expected    {test}: {describe(pair)}\n      {reason}")
        else:
            print(f"  UNEXPECTED  {test}: {describe(pair)}")
            errors.append(f"unexpected difference: {test}: {pair[0]} -> {pair[1]}")
    for test in expected:
        covered = any(is_within(test, suite) for suite in suites)
        if covered and test not in differing:
            print(f"  STALE       {test}: no longer differs")
            errors.append(f"expected difference is gone: {test}")
    return errors


def is_within(test: str, suite: str) -> bool:
    return test == suite or test.startswith((f"{suite}.", f"{suite}::"))


def print_counts(title: str, runs: dict[str, Run]) -> None:
    print(f"\n{title}")
    print(" " * 9 + "".join(f"{kind:>12}" for kind in COLUMNS) + "       total    time")
    for side, run in runs.items():
        counts = Counter(map(str, run.outcomes.values()))
        cells = "".join(f"{counts[kind]:>12}" for kind in COLUMNS)
        print(f"  {side:7}{cells}{len(run.outcomes):>12}{run.seconds:>6.0f} s")
    uncollected = {
        f"  uncollected {test}: {outcome.details[0]}"
        for run in runs.values()
        for test, outcome in run.outcomes.items()
        if outcome.kind == "uncollected"
    }
    for line in sorted(uncollected):
        print(line)


def compare(
    suites: list[str], root: Path, folder: Path, workers: int, timeout: float
) -> list[str]:
    """Runs suites on both sides, prints the comparison and returns what is wrong."""
    title = " ".join(suites)
    runs: dict[str, Run] = {}
    for side in SIDES:
        runs[side] = run_tests(suites, side, root, folder / side, workers, timeout)
    print_counts(title, runs)
    if problems := problems_of(title, runs):
        return problems
    differing = differences(runs)
    if differing:
        again = {
            side: run_tests(
                selections(differing),
                side,
                root,
                folder / f"{side}-again",
                workers,
                timeout,
            )
            for side in SIDES
        }
        if problems := problems_of(f"{title} (again)", again):
            return problems
        differing = still_differing(differing, again)
    return judge(differing, EXPECTED_DIFFERENCES, suites)


def problems_of(title: str, runs: dict[str, Run]) -> list[str]:
    return [
        f"{title} {side} {PACKAGE}: {problem}"
        for side, run in runs.items()
        for problem in run.problems
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Compares test suites with and without executorch_slice."
    )
    parser.add_argument(
        "suites",
        nargs="*",
        default=SUITES,
        metavar="SUITE",
        help="what to pass to pytest --pyargs (default: %(default)s)",
    )
    parser.add_argument(
        "-n",
        "--workers",
        type=int,
        default=2 if importlib.util.find_spec("xdist") else 0,
        help="pytest-xdist's workers; 0: do without it (default: %(default)s)",
    )
    parser.add_argument(
        "--together",
        action="store_true",
        help="run all suites at once: faster for small ones",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=1800,
        metavar="SECONDS",
        help="for one run on one side (default: %(default)s)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="keep pytest's logs and JUnit reports in this new folder",
    )
    args = parser.parse_args()
    suites = list(args.suites)
    errors = []
    with tempfile.TemporaryDirectory(prefix="parity-") as temporary:
        folder = args.output.absolute() if args.output else Path(temporary)
        try:
            roots = [probe(side, suites, Path(temporary)) for side in SIDES][0]
        except ParityError as error:
            sys.exit(f"parity: {error}")
        for group in [suites] if args.together else [[suite] for suite in suites]:
            [root, *others] = {roots[suite] for suite in group}
            if root is None or others:
                sys.exit(f"parity: {' '.join(group)}: not installed in one place")
            output = folder / re.sub(r"\W+", "_", group[0])
            errors += compare(group, Path(root), output, args.workers, args.timeout)
    print()
    for line in errors:
        print(f"ERROR: {line}")
    print("parity: " + (f"{len(errors)} errors" if errors else "OK"))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # Also where a shell started this in the background, which ignores SIGINT:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("parity: terminated"))
    sys.exit(main())
