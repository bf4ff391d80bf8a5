# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""The commands, run in this process on small models: output, files and exit codes."""

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest
import torch
from executorch.exir import to_edge
from executorch_slice import decisions, lowering
from executorch_slice.cli import main
from executorch_slice.compare import LoadedProgram, lower, lower_stock
from executorch_slice.lowering import program_arenas
from torch import nn, Tensor

REASON = "NOT_DENSE"


class Slices(nn.Module):
    """Two aliases, and a transpose that stays."""

    def forward(self, x: Tensor) -> Tuple[Tensor, Tensor]:
        y = x.sin()
        top, bottom = y[:2].relu(), y[2:].relu()
        return top + bottom, y.transpose(0, 1).exp()


class Rows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[1:].exp()


class Files:
    """Saved and lowered programs, made once."""

    def __init__(self, folder: Path) -> None:
        self.saved, self.aliased = folder / "slices.pt2", folder / "slices.pte"
        self.stock = folder / "stock.pte"
        exported = torch.export.export(Slices(), (torch.randn(4, 8),))
        torch.export.save(exported, self.saved)
        edge = to_edge(exported)
        self.managers = {"stock": lower_stock(edge), "aliased": lower(edge)}
        self.stock.write_bytes(self.managers["stock"].buffer)
        self.aliased.write_bytes(self.managers["aliased"].buffer)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("models"))


def run(*args: Any) -> int:
    return main(list(map(str, args)))


def report(capsys: pytest.CaptureFixture[str], *args: Any) -> Dict[str, Any]:
    assert run(*args) == 0
    found: Dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_explain_prints_each_copy(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("explain", files.saved) == 0
    out = capsys.readouterr().out
    for decision in decisions(files.managers["aliased"]):
        (line,) = (row for row in out.splitlines() if f" {decision.node} " in row)
        assert decision.verdict in line and decision.reason.name in line
        assert re.search(r"test_cli\.py:\d+", line)
    assert f"{REASON}: its elements do not lie" in out
    assert "3 copies: 2 alias (128 bytes), 1 copy (128 bytes)" in out


def test_explain_prints_json(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, "explain", files.saved, "--format", "json")
    assert set(found) == {"model", "decisions", "totals"}
    for decision in found["decisions"]:
        source = Path(__file__).read_text().splitlines()
        name, _, line = decision["source"].partition(":")
        assert name == "test_cli.py"
        assert "y[" in source[int(line) - 1] or "transpose" in source[int(line) - 1]
    assert found["totals"]["alias"] == {"count": 2, "bytes": 128}
    assert found["totals"]["copy"] == {"count": 1, "bytes": 128}


def test_explain_takes_the_options_of_lowering(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    command = "explain", files.saved, "--format", "json", "--min-alignment", 1024
    found = report(capsys, *command)
    reasons = [decision["reason"] for decision in found["decisions"]]
    assert reasons.count("MISALIGNED") == 1


@pytest.mark.parametrize(
    "options, verdict", [((), "copy"), (("--et-slice",), "kernel")]
)
def test_et_slice(
    options: Tuple[str, ...],
    verdict: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = {"x": {0: torch.export.Dim("rows", min=4, max=8)}}
    dynamic = torch.export.export(Rows(), (torch.randn(6, 8),), dynamic_shapes=rows)
    torch.export.save(dynamic, tmp_path / "rows.pt2")
    command = "explain", tmp_path / "rows.pt2", "--format", "json"
    (decision,) = report(capsys, *command, *options)["decisions"]
    assert (decision["verdict"], decision["reason"]) == (verdict, "DYNAMIC")


@pytest.mark.parametrize("reason, code", [(REASON, 1), ("CONSTANT", 0)])
def test_fail_on_copy(
    files: Files, capsys: pytest.CaptureFixture[str], reason: str, code: int
) -> None:
    assert run("explain", files.saved, "--fail-on-copy", reason) == code
    captured = capsys.readouterr()
    assert "3 copies" in captured.out
    assert ("1 stay, the first is" in captured.err) == (code == 1)


@pytest.mark.parametrize("reason", ["BAD_LUCK", "SAFE", "STORED"])
def test_fail_on_no_reason_to_stay(
    files: Files, capsys: pytest.CaptureFixture[str], reason: str
) -> None:
    assert run("explain", files.saved, "--fail-on-copy", reason) == 2
    assert reason in one_line(capsys)


@pytest.mark.parametrize("backend", [(), ("--backend", "xnnpack")])
def test_lower_writes_a_program_that_runs(
    files: Files,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    backend: Tuple[str, ...],
) -> None:
    out = tmp_path / "out.pte"
    assert (
        run("lower", files.saved, "-o", out, "--memory-growth", "allow", *backend) == 0
    )
    printed = capsys.readouterr().out
    assert "Memory plan proven; outputs on the example inputs equal stock's" in printed
    if not backend:
        assert re.search(r"out\.pte +2 -> 0 ", printed)
        x = torch.randn(4, 8)
        program = LoadedProgram(out.read_bytes())
        for got, want in zip(program(x), Slices()(x)):
            torch.testing.assert_close(got, want)


class Mixed(nn.Module):
    """Returns numbers beside a tensor."""

    def forward(self, x: Tensor) -> Tuple[Any, ...]:
        return x[1:] + 1, x.shape[0], True


def test_outputs_that_are_no_tensors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "mixed.pt2", tmp_path / "mixed.pte"
    torch.export.save(torch.export.export(Mixed(), (torch.randn(4, 8),)), path)
    assert run("lower", path, "-o", out) == 0
    assert "equal stock's bit for bit" in capsys.readouterr().out
    assert run("inspect", out) == 0


def test_kernels_that_this_process_has_not(
    files: Files,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lowering, "_get_operator_names", list)
    assert run("lower", files.saved, "-o", tmp_path / "out.pte") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "this process has no kernel of aten::add.out, aten::exp.out," in printed


def test_no_file_is_overwritten_by_another(
    files: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, before = tmp_path / "out.svg", files.saved.read_bytes()
    for args in [
        ("lower", files.saved, "-o", files.saved),
        ("lower", files.saved, "-o", out, "--memory-map", tmp_path / "." / "out.svg"),
        ("inspect", files.aliased, "--memory-map", files.aliased),
    ]:
        assert run(*args) == 2
        assert "is given twice" in one_line(capsys)
    assert files.saved.read_bytes() == before and not out.exists()


def test_a_program_without_methods(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "none.pte"
    path.write_bytes(to_edge({}).to_executorch().buffer)
    assert run("inspect", path) == 0
    assert "no methods" in capsys.readouterr().out


def test_inspect_finds_the_aliases(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    found = report(capsys, "inspect", files.aliased, "--json")
    (method,) = found["methods"]
    (arena,) = method["arenas"]
    tensors = {t["value"]: t for t in arena["tensors"]}
    aliases = [t for t in tensors.values() if t["alias_of"] is not None]
    assert [t["sizes"] for t in aliases] == [[2, 8], [2, 8]]
    for alias in aliases:
        root = tensors[alias["alias_of"]]
        assert root["name"].endswith("sin")
        assert alias["relation"].startswith(f"inside {root['name']}, at byte ")
        assert root["last_instruction"] >= alias["last_instruction"]
    assert [t["byte_offset"] for t in arena["tensors"]] == sorted(
        t["byte_offset"] for t in arena["tensors"]
    )
    (copy,) = method["copies"]
    assert (copy["op"], copy["nbytes"]) == ("aten::permute_copy", 128)
    assert arena["peak_bytes"] <= arena["bytes"]


def test_inspect_reads_a_program_of_stock(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    (method,) = report(capsys, "inspect", files.stock, "--json")["methods"]
    assert all(t["alias_of"] is None for t in method["arenas"][0]["tensors"])
    assert len(method["copies"]) == 3


def test_stock_views_have_the_same_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class View(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sin().view(-1).cos()

    edge = to_edge(torch.export.export(View(), (torch.randn(4, 8),)))
    (tmp_path / "view.pte").write_bytes(lower_stock(edge).buffer)
    assert run("inspect", tmp_path / "view.pte") == 0
    assert re.search(r"same bytes as %\d+", capsys.readouterr().out)


@pytest.mark.parametrize("command", ["explain", "inspect", "lower"])
def test_output_fits_and_is_plain_when_piped(
    files: Files,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    model = files.aliased if command == "inspect" else files.saved
    out = ("-o", tmp_path / "out.pte") if command == "lower" else ()
    assert run(command, model, *out) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert "\x1b" not in printed


def test_a_terminal_shows_colours_and_progress(
    files: Files, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert run("explain", files.saved) == 0
    captured = capsys.readouterr()
    coloured = [row for row in captured.out.splitlines() if "\x1b[33m" in row]
    assert len(coloured) == 1 and REASON in coloured[0]
    assert "lowering" in captured.err


BROKEN = {
    "empty": b"",
    "random": bytes(range(256)) * 8,
    "zip": b"PK\x03\x04" + bytes(64),
    "identified": b"\x10\x00\x00\x00ET12" + bytes(range(200)),
}


@pytest.mark.parametrize("command", ["inspect", "explain"])
@pytest.mark.parametrize("kind", [*BROKEN, "truncated", "missing", "folder", "other"])
def test_a_file_that_does_not_fit_gets_one_line(
    files: Files,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    kind: str,
) -> None:
    path = tmp_path / "model"
    right, wrong = files.aliased, files.saved
    if command == "explain":
        right, wrong = wrong, right
    if kind in BROKEN:
        path.write_bytes(BROKEN[kind])
    elif kind == "truncated":
        path.write_bytes(right.read_bytes()[: -right.stat().st_size // 3])
    elif kind == "folder":
        path.mkdir()
    elif kind == "other":
        path = wrong
    capsys.readouterr()
    assert run(command, path) == 3
    assert str(path) in one_line(capsys)


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("executorch-slice: ")
    return line


def test_every_truncation_is_noticed(files: Files, tmp_path: Path) -> None:
    data, path = files.aliased.read_bytes(), tmp_path / "part.pte"
    for size in range(0, len(data), max(len(data) // 40, 1)):
        path.write_bytes(data[:size])
        assert run("inspect", path) == 3


def test_output_that_cannot_be_written(
    files: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("lower", files.saved, "-o", tmp_path / "no" / "out.pte") == 3
    assert "cannot write" in one_line(capsys)


def test_a_model_that_cannot_be_lowered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Complex(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.fft(x).abs()

    path = tmp_path / "complex.pt2"
    torch.export.save(torch.export.export(Complex(), (torch.randn(4),)), path)
    assert run("explain", path) == 4
    assert "cannot lower" in one_line(capsys)


@pytest.mark.parametrize(
    "args", [[], ["explain"], ["explain", "a", "--min-alignment", "0"]]
)
def test_wrong_usage_exits_with_2(args: List[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(args)
    assert exit_.value.code == 2


@pytest.mark.parametrize("suffix", ["html", "svg", "png"])
def test_memory_maps(
    files: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / f"map.{suffix}"
    pte = tmp_path / "out.pte"
    assert run("lower", files.saved, "-o", pte, "--memory-map", out) == 0
    if suffix == "png":
        assert out.read_bytes().startswith(b"\x89PNG")
        return
    text = out.read_text()
    if suffix == "html":
        assert "http" not in text and "src=" not in text and "@import" not in text
        text = text[text.index("<svg") : text.index("</svg>") + len("</svg>")]
    titles = [
        e.text or ""
        for e in ElementTree.fromstring(text).iter()
        if e.tag.endswith("title")
    ]
    drawn = [a for m in files.managers.values() for a in program_arenas(m)]
    assert len(titles) == sum(len(arena.tensors) for arena in drawn)
    for arena in drawn:
        for t in arena.tensors:
            assert any(
                title.startswith(f"{t.name}\n")
                and f"{t.nbytes:,} bytes" in title
                and f"instructions {t.first} to {t.last}" in title
                for title in titles
            )
    assert "stock: forward, arena 1" in text and "aliased: forward, arena 1" in text
    assert "peak" in text


@pytest.mark.parametrize("command", ["explain", "inspect"])
def test_other_commands_draw_too(files: Files, tmp_path: Path, command: str) -> None:
    pytest.importorskip("matplotlib")
    model = files.saved if command == "explain" else files.aliased
    assert run(command, model, "--memory-map", tmp_path / "map.svg") == 0
    assert "alias of" in (tmp_path / "map.svg").read_text()


def test_a_memory_map_of_another_kind(
    files: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("inspect", files.aliased, "--memory-map", tmp_path / "map.pdf") == 2
    assert ".svg" in one_line(capsys)


def test_a_missing_matplotlib_is_said(
    files: Files,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("executorch_slice.memory_map.find_spec", lambda name: None)
    assert run("inspect", files.aliased, "--memory-map", tmp_path / "map.svg") == 2
    assert "pip install" in one_line(capsys)
