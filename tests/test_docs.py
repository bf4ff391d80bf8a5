# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""What README.md and docs say: commands run, code runs, links and tables hold."""

import argparse
import ast
import re
import shlex
import shutil
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import Any, Callable, Dict, List, Set, Tuple
from urllib.parse import urlsplit

import executorch.exir
import pytest
import torch
from executorch.exir import to_edge
from executorch_slice import AliasConfig, cli, decisions, seams
from executorch_slice.exir.alias_decision import Decision, Reason
from executorch_slice.exit_codes import ExitCode
from markdown_files import (
    anchors,
    code_blocks,
    DOCS,
    FILES,
    inline_code,
    links,
    prose,
    ROOT,
    shell_commands,
    table_rows,
)
from torch import nn, Tensor

README = ROOT / "README.md"
PACKAGE = Path(executorch.exir.__file__).parents[1]
TREE = ("backends", "exir", "kernels", "util")


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sin()[:2].cos()


INPUTS = (torch.ones(4, 8),)


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_links(path: Path) -> None:
    for link in links(path):
        url = urlsplit(link)
        if url.scheme:
            continue
        target = (path.parent / url.path).resolve() if url.path else path
        assert target.exists(), link
        if url.fragment:
            assert url.fragment in anchors(target), link


def test_every_page_is_linked_from_the_index() -> None:
    pages = {path.name for path in DOCS.glob("*.md")} - {"index.md"}
    assert pages <= set(links(DOCS / "index.md"))
    assert "docs/index.md" in links(README) and "docs/plan.svg" in links(README)


def run_command(*words: str) -> None:
    assert cli.main(words) == ExitCode.DONE


def dry_run(target: str, *_: str) -> None:
    if shutil.which("make") is None:
        pytest.skip("there is no make")
    subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True)


def configure(*words: str) -> None:
    """Builds are made in kernels/prim_ops/test: this looks at the names alone."""
    assert words[0] in ("-S", "--build")
    if words[0] == "-S":
        assert (ROOT / words[1] / "CMakeLists.txt").exists()


def install(*words: str) -> None:
    assert words in (("install", "."), ("install", "executorch-slice[pictures]"))


def build_of_the_example(*_: str) -> None:
    build = (ROOT / "examples/cpp/CMakeLists.txt").read_text()
    assert "add_executable(run_program" in build


def run_python(*words: str) -> None:
    """The scripts and tests that are named; each takes minutes to run."""
    scripts = [ROOT / word for word in words if word.endswith(".py")]
    assert scripts
    for script in scripts:
        compile(script.read_text(), str(script), "exec")


COMMANDS: Dict[str, Callable[..., None]] = {
    "build/example/run_program": build_of_the_example,
    "cmake": configure,
    "executorch-slice": run_command,
    "make": dry_run,
    "pip": install,
    "python": run_python,
}
IN_BLOCKS = {command for path in FILES for command in shell_commands(path)}
DEMO = "executorch-slice demo"  # see test_demo


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the files that the commands of the docs name."""
    folder = tmp_path_factory.mktemp("models")
    exported = torch.export.export(Model(), INPUTS)
    program = to_edge(exported).to_executorch().buffer
    for name in ("model", "MODEL"):
        torch.export.save(exported, folder / f"{name}.pt2")
        (folder / f"{name}.pte").write_bytes(program)
    return folder


@pytest.mark.parametrize("command", sorted(IN_BLOCKS - {DEMO}))
def test_command(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    name, *words = shlex.split(command)
    COMMANDS[name](*words)


def commands_in_prose() -> Set[str]:
    """Commands between backticks, without the environment set before them."""
    codes = {code for path in FILES for code in inline_code(prose(path))}
    codes = {re.sub(r"^(\w+=\S+ )+", "", code) for code in codes}
    names = "make", "pip", "python"
    return {code for code in codes if code.split()[0] in names and " " in code}


@pytest.mark.parametrize("command", sorted(commands_in_prose()))
def test_command_in_prose(command: str) -> None:
    name, *words = shlex.split(command)
    COMMANDS[name](*words)


def test_demo(capsys: pytest.CaptureFixture[str]) -> None:
    """It prints the numbers of the README's table."""
    run_command("demo")
    printed = capsys.readouterr().out
    for _, *numbers in table_rows(README, "model"):
        found = [line for line in printed.splitlines() if numbers[2] in line]
        assert len(found) == 1
        assert re.findall(r"\d+ -> \d+", found[0]) == numbers


def paths_in_prose(path: Path) -> Set[str]:
    """What looks like a path of the tree or of ExecuTorch's."""
    form = re.compile(rf"(?:{'|'.join(TREE)}|docs|examples|src|tests)/[\w/.]*\w")
    codes = inline_code(prose(path))
    return {code for code in codes if form.fullmatch(code)}


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_paths(path: Path) -> None:
    for name in paths_in_prose(path):
        assert (ROOT / name).exists() or (PACKAGE / name).exists(), name


PYTHON = [(path, code) for path in FILES if (code := code_blocks(path, "python"))]


@pytest.mark.parametrize(
    "path, blocks", PYTHON, ids=[relative(path) for path, _ in PYTHON]
)
def test_python(path: Path, blocks: List[str], kernels: None) -> None:
    exported = torch.export.export(Model(), INPUTS)
    names: Dict[str, Any] = {
        "decisions": decisions,
        "exported": exported,
        "inputs": INPUTS,
        "manager": to_edge(exported).to_executorch(),
        "model": Model(),
        "to_edge": to_edge,
        "torch": torch,
    }
    for block in blocks:
        exec(block, names)


def names_in(heading: str) -> Set[str]:
    """The code in the first column of a table of the reference."""
    rows = table_rows(DOCS / "reference.md", heading)
    return {code for first, *_ in rows for code in inline_code(first)}


def test_fields_of_the_config() -> None:
    rows = list(table_rows(DOCS / "reference.md", "`AliasConfig` field"))
    documented = {
        inline_code(name)[0]: ast.literal_eval(inline_code(default)[0])
        for name, default, _ in rows
    }
    assert documented == {f.name: f.default for f in fields(AliasConfig)}


def test_fields_of_a_decision() -> None:
    documented = names_in("`Decision` field")
    assert documented == {f.name for f in fields(Decision)} | {"explanation"}


def test_reasons() -> None:
    assert names_in("`Reason`") == {reason.name for reason in Reason}


def options_of_commands() -> Set[str]:
    (commands,) = (
        action
        for action in cli._parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    return {
        option
        for command in commands.choices.values()
        for option in command._option_string_actions
        if option.startswith("--")
    }


def test_options() -> None:
    documented = set(re.findall(r"(?<!-)--[a-z][a-z-]+", (DOCS / "cli.md").read_text()))
    assert documented | {"--help", "--output"} == options_of_commands()


def test_exit_codes() -> None:
    section = prose(DOCS / "cli.md").partition("## Exit codes")[2]
    documented = re.findall(r"^\| (\d) \|", section, re.MULTILINE)
    assert list(map(int, documented)) == sorted(ExitCode)


def test_versions() -> None:
    low, high = seams.SUPPORTED
    assert high == (low[0], low[1] + 1)
    project = (ROOT / "pyproject.toml").read_text()
    python = re.search(r'requires-python = ">=3\.(\d+),<3\.(\d+)"', project)
    assert python is not None
    first, last = int(python[1]), int(python[2]) - 1
    rows = {row[0]: row[1] for row in table_rows(DOCS / "compatibility.md", "what")}
    assert rows["ExecuTorch"] == ".".join(map(str, low))
    assert rows["Python"] == f"3.{first} to 3.{last}"


def files_of_a_step(cell: str) -> Tuple[Set[str], Set[str]]:
    """Paths that a row of the series calls new, and the others."""
    new = re.search(r"new: (.*?)(\. |;|$)", cell)
    paths = {code for code in inline_code(cell) if "/" in code}
    fresh = set(inline_code(new[1])) if new else set()
    return fresh, paths - fresh


def test_upstreaming_names_each_file() -> None:
    named: Set[str] = set()
    for _, _, files, tests in table_rows(DOCS / "upstreaming.md", "#"):
        new, extended = files_of_a_step(files)
        assert not any((PACKAGE / path).exists() for path in new)
        assert all((PACKAGE / path).exists() for path in extended - named)
        named |= new | extended
        assert all((ROOT / code).is_file() for code in inline_code(tests))
    sources = [
        path
        for folder in TREE
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and not {"test", "tests", "__pycache__"} & set(path.parts)
    ]
    assert named >= {relative(p) for p in sources if p.name != "__init__.py"}
