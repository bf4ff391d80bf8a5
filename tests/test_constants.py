# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Slices of constants: the program holds the parts where that needs no more bytes."""

import copy
from typing import Any, Callable, Dict, Optional, Tuple

import pytest
import torch
from alias_testing import (
    all_safe_aliases,
    arange,
    assert_runs_as_eager,
    has_right_plan,
    lower,
    reasons,
    slice_kernels,
)
from executorch.exir import ExecutorchBackendConfig, ExecutorchProgramManager, to_edge
from executorch.exir.passes import MemoryPlanningPass
from executorch.extension.pybindings.portable_lib import (
    _load_for_executorch_from_buffer,
)
from executorch_slice import (
    AliasConfig,
    decisions,
    disabled,
    ExecutorchBackendConfig as AliasBackendConfig,
)
from executorch_slice.cost import program_cost
from torch import nn, Tensor

ROWS, WIDTH = 8, 12
DTYPES = (torch.int8, torch.int16, torch.int64, torch.float16, torch.float64)
Body = Callable[[Tensor, Tensor], Any]


class Table(nn.Module):
    """What `body` makes of its input and a constant."""

    def __init__(
        self, body: Body, kind: str = "buffer", table: Optional[Tensor] = None
    ) -> None:
        super().__init__()
        self.body = body
        table = arange(ROWS, WIDTH) + 1 if table is None else table
        if kind == "parameter":
            self.table = nn.Parameter(table)
        elif kind == "lifted":
            self.table = table
        else:
            self.register_buffer("table", table, persistent=kind == "buffer")

    def forward(self, x: Tensor) -> Any:
        return self.body(x, self.table)


X = (arange(WIDTH),)


def stock(module: nn.Module, inputs: Tuple[Any, ...] = X) -> ExecutorchProgramManager:
    with disabled():
        return lower(module, inputs)


def assert_stored(module: nn.Module, inputs: Tuple[Any, ...] = X) -> None:
    """Slices cost nothing, the values are right, and the program is no larger."""
    manager = lower(module, inputs)
    assert_runs_as_eager(module, inputs, manager)
    assert "STORED" in reasons(manager)
    assert {d.verdict for d in decisions(manager)} <= {"constant", "alias"}
    assert slice_kernels(manager) == 0
    assert has_right_plan(manager)
    assert len(manager.buffer) <= len(stock(module, inputs).buffer)


def assert_kept(manager: ExecutorchProgramManager, *kept: str) -> None:
    assert set(reasons(manager)) == set(kept)
    assert all(d.verdict == "copy" for d in decisions(manager))


STORED: Dict[str, Body] = {
    "rows": lambda x, t: x + t[2:6].sum(0),
    "columns": lambda x, t: x + t[:, 1:5].sum(),
    "step": lambda x, t: x + t[::2].sum(0),
    "row": lambda x, t: x + t[5],
    "column": lambda x, t: x + t[:, 3].sum(),
    "narrow": lambda x, t: x + t.narrow(0, -3, 2).sum(0),
    "slice of a slice": lambda x, t: x + t[2:6][:, 3:5].sum(),
    "both halves": lambda x, t: x + t[:4].sum(0) - t[4:].prod(0),
    "chunks": lambda x, t: x + t.chunk(2)[0].sum(0) * t.chunk(2)[1].sum(0),
    "split": lambda x, t: x + sum(p.sum(0) for p in t.split([2, 4, 2])),
    "unbind": lambda x, t: sum(t.unbind(0), x),
    "one piece": lambda x, t: x + torch.split(t, 6, dim=1)[1].sum(),
    "pieces of pieces": lambda x, t: x + sum(p[0].sum() for p in t.chunk(4)),
    "view of a part": lambda x, t: x + t[2:5].view(12, 3).sum(1),
    "unsqueezed": lambda x, t: x + t[:1].unsqueeze(1) + t[7:].unsqueeze(0),
    "clone of a part": lambda x, t: x + t[3].clone(),
    "read twice": lambda x, t: (x + t[1], x * t[1]),
    "the same rows twice": lambda x, t: x + t[:5].sum(0) * t[:5].prod(0),
    "rows of unbind": lambda x, t: x + sum(half[1:3, 0].sum() for half in t.chunk(2)),
    "part of a view": lambda x, t: x + t.view(4, 24)[1, 2:14],
    "part of a view of a part": lambda x, t: x + t[:, 2:8].reshape(4, 12)[3],
    "in a branch": lambda x, t: torch.cond(
        x.sum() > 0, lambda x, p: x + p, lambda x, p: x - p, (x, t[4])
    ),
}


@pytest.mark.parametrize("name", STORED)
def test_parts_are_stored(name: str) -> None:
    assert_stored(Table(STORED[name]))


@pytest.mark.parametrize("kind", ["parameter", "buffer", "non-persistent", "lifted"])
def test_kinds_of_constants(kind: str) -> None:
    assert_stored(Table(lambda x, t: x + t[2:4].sum(0), kind))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    """An odd number of columns, so that the parts are padded."""
    table = arange(ROWS, WIDTH, dtype=dtype)
    assert_stored(Table(lambda x, t: (x.sum(), t[1:4, ::2].neg()), table=table))


def channels_last(x: Tensor) -> Tensor:
    return x.to(memory_format=torch.channels_last)


CHANNELS_LAST: Dict[str, Body] = {
    "sliced": lambda x, w: x + w[1:3].sum(),
    "converted": lambda x, w: x + w.contiguous()[1:3, 0].sum(),
    "converted, then read whole": lambda x, w: x + w.contiguous().view(10, 12).sum(0),
}


@pytest.mark.parametrize("name", CHANNELS_LAST)
def test_channels_last_constants(name: str) -> None:
    """Stock lowers these, too, but runs none of them."""
    weight = channels_last(arange(4, 3, 2, 5))
    module = Table(CHANNELS_LAST[name], table=weight)
    manager = lower(module, X)
    assert_runs_as_eager(module, X, manager)
    assert {d.verdict for d in decisions(manager)} <= {"constant", "alias"}
    assert program_cost(manager).arena_bytes <= program_cost(stock(module)).arena_bytes


KEPT: Dict[str, Tuple[Body, str]] = {
    "read whole, too": (lambda x, t: x + t[2] + t.sum(0), "CONSTANT"),
    "more than all": (lambda x, t: x + t[:5].sum(0) + t[3:].sum(0), "CONSTANT"),
    "returned": (lambda x, t: (x + 1, t[2:4]), "OUTPUT"),
    "returned beside": (lambda x, t: (x + t[1], t[2:4]), "OUTPUT CONSTANT"),
    "an operand of a branch": (
        lambda x, t: torch.cond(
            x.sum() > 0, lambda x, t: x + t[1], lambda x, t: x - t[2], (x, t)
        ),
        "CONTROL_FLOW_OPERAND",
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_copies_that_stay(name: str) -> None:
    body, kept = KEPT[name]
    manager = lower(Table(body), X)
    assert_runs_as_eager(Table(body), X, manager)
    assert_kept(manager, *kept.split())


class Tables(nn.Module):
    def __init__(self, other: Tensor) -> None:
        super().__init__()
        self.register_buffer("one", arange(ROWS, WIDTH))
        self.register_buffer("other", other)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.one[2:4].sum(0) * self.other.sum(0)


def test_equal_constants_are_stored_once() -> None:
    """So what is sliced is in the program anyway, and a part would come on top."""
    assert_stored(Tables(arange(ROWS, WIDTH) + 1))
    module = Tables(arange(ROWS, WIDTH))
    manager = lower(module, X)
    assert_runs_as_eager(module, X, manager)
    assert_kept(manager, "CONSTANT")


def lower_methods(config: Any = None, **modules: nn.Module) -> ExecutorchProgramManager:
    exported = {name: torch.export.export(m, X) for name, m in modules.items()}
    return to_edge(exported).to_executorch(config)


def test_constants_of_several_methods() -> None:
    sliced, whole = Table(lambda x, t: x + t[1]), Table(lambda x, t: x + t.sum(0))
    manager = lower_methods(one=sliced, other=whole)
    assert_kept(manager, "CONSTANT")
    alone = lower_methods(one=sliced, other=Table(lambda x, t: x + t[1]))
    assert_kept(alone, "CONSTANT")
    (got,) = _load_for_executorch_from_buffer(manager.buffer).run_method("one", X)
    torch.testing.assert_close(got, sliced(*X))


class Counter(nn.Module):
    """`forward` reads a part of what `count` of the same module writes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", arange(ROWS, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.state[2]

    def count(self, x: Tensor) -> Tensor:
        self.state.add_(1)
        return x + self.state[1]


def test_buffers_that_another_method_writes() -> None:
    module = Counter()
    writer = copy.deepcopy(module)
    writer.forward = writer.count  # type: ignore[method-assign]
    planner = MemoryPlanningPass(share_mutable_buffers=True)
    config = ExecutorchBackendConfig(
        memory_planning_pass=planner, emit_mutable_buffer_names=True
    )
    manager = lower_methods(config, forward=module, count=writer)
    assert "STORED" not in reasons(manager)


def test_constants_in_a_file_of_their_own() -> None:
    config = ExecutorchBackendConfig(external_constants=True)
    manager = lower_methods(config, forward=Table(STORED["rows"]))
    assert_kept(manager, "CONSTANT")


def test_alignment_of_constants() -> None:
    """Four parts of 96 bytes in place of 384: more, where each starts at 128."""
    module = Table(lambda x, t: x + sum(p.sum() for p in t.chunk(4)))
    for alignment, kept in [(None, "STORED"), (32, "STORED"), (128, "CONSTANT")]:
        config = ExecutorchBackendConfig(constant_tensor_alignment=alignment)
        manager = lower_methods(config, forward=module)
        assert set(reasons(manager)) == {kept}
        assert_runs_as_eager(module, X, manager)


def test_a_manager_that_is_lowered_again() -> None:
    module = Table(STORED["slice of a slice"])
    edge = to_edge(torch.export.export(module, X))
    first, second = edge.to_executorch(), edge.to_executorch()
    assert reasons(first) == reasons(second) == ["STORED", "STORED"]
    assert_runs_as_eager(module, X, second)
    with disabled():
        assert_runs_as_eager(module, X, edge.to_executorch())


def test_switched_off() -> None:
    config = AliasBackendConfig(alias=AliasConfig(enabled=False))
    assert_kept(lower(Table(STORED["rows"]), X, config), "SWITCHED_OFF")


def test_a_written_part_stays_a_copy() -> None:
    def forward(x: Tensor, table: Tensor) -> Tensor:
        part = table[2:4] + 0
        row = table[1].clone()
        row.add_(x)
        return row + part.sum(0)

    config = all_safe_aliases(run_reinplace_pass=True)
    module = Table(forward)
    manager = lower(module, X, config)
    assert_runs_as_eager(module, X, manager)
