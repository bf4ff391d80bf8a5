# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""How decisions print, as text, as JSON and in a notebook."""

import json
from dataclasses import fields
from typing import Any, Dict

import pytest
import torch
from alias_testing import Fn, lower
from executorch.exir import to_edge
from executorch_slice import decisions
from executorch_slice.exir.alias_decision import Decision, Decisions, Reason

ONE = Decision(
    method="forward",
    node="aten_slice_copy_tensor",
    op="aten.slice_copy.Tensor",
    verdict="copy",
    reason=Reason.WOULD_GROW,
    nbytes=2048,
    base="aten_<sin>",
    byte_offset=None,
    growth=1024,
    source="model.py:12",
)


def other(**changes: Any) -> Decision:
    known: Dict[str, Any] = {f.name: getattr(ONE, f.name) for f in fields(Decision)}
    return Decision(**{**known, **changes})


def test_a_decision_as_json() -> None:
    found = ONE.to_dict()
    assert json.loads(json.dumps(found)) == found
    assert found["reason"] == "WOULD_GROW"
    assert found["explanation"].endswith("would grow the arena by 1,024 bytes")
    assert set(found) == {f.name for f in fields(Decision)} | {"explanation"}


def test_decisions_are_a_list() -> None:
    found = Decisions([ONE])
    assert found == [ONE] and isinstance(found, list) and len(found[:1]) == 1
    assert json.loads(json.dumps(found.to_dict()))["totals"] == {
        "alias": {"count": 0, "bytes": 0},
        "kernel": {"count": 0, "bytes": 0},
        "constant": {"count": 0, "bytes": 0},
        "copy": {"count": 1, "bytes": 2048},
    }


def test_decisions_print_as_a_table() -> None:
    safe = other(node="a", verdict="alias", reason=Reason.SAFE, nbytes=4)
    assert repr(Decisions([ONE, safe])).splitlines() == [
        "method   node                    verdict  reason      bytes  source",
        "forward  aten_slice_copy_tensor  copy     WOULD_GROW  2,048  model.py:12",
        "forward  a                       alias    SAFE        4      model.py:12",
        "2 copies: 1 alias (4 bytes), 1 copy (2,048 bytes)",
    ]
    assert repr(Decisions()) == "0 copies"


def test_decisions_of_something_else() -> None:
    edge = to_edge(torch.export.export(Sliced(), (torch.randn(4, 8),)))
    for other_object in (edge, edge.exported_program(), None):
        with pytest.raises(TypeError, match="no ExecutorchProgramManager"):
            decisions(other_object)


def test_long_tables_are_cut() -> None:
    many = Decisions([ONE] * (Decisions.SHOWN + 2))
    assert len(repr(many).splitlines()) == Decisions.SHOWN + 3
    assert "... and 2 more" in repr(many)
    assert many._repr_html_().count("<tr") == Decisions.SHOWN + 1


def test_a_notebook_shows_a_table() -> None:
    page = Decisions([other(node="<script>")])._repr_html_()
    assert "<td>&lt;script&gt;</td>" in page and "<script>" not in page
    assert "would grow the arena by 1,024 bytes" in page
    assert "1 copy: 1 copy (2,048 bytes)" in page


class Sliced(torch.nn.Module):
    """A slice of its own, and a transpose that PyTorch's linear layer makes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        z = y[:2].cos()
        return self.linear(z)


def test_the_source_is_the_line_of_the_model() -> None:
    found = decisions(lower(Sliced(), (torch.randn(4, 8),)))
    first = Sliced.forward.__code__.co_firstlineno
    sources = {d.op: d.source for d in found}
    assert sources["aten.slice_copy.Tensor"] == f"test_decisions.py:{first + 2}"
    assert sources["aten.permute_copy.default"] == f"test_decisions.py:{first + 3}"


def rows_doubled(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()[:2]
    return torch.cat([y, y])


def test_generated_code_is_no_line_of_the_model() -> None:
    """PyTorch traces a branch as code that it generates."""
    module = Fn(lambda x: torch.cond(x.sum() > 0, rows_doubled, torch.sin, (x,)))
    (found,) = decisions(lower(module, (torch.ones(4, 8),)))
    assert found.op == "aten.slice_copy.Tensor" and "<" not in found.source
