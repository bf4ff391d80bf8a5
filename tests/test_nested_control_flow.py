# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Slices and views of operands, rows, carried values and results, nested two deep."""

from typing import Any, Callable, Dict, Optional, Tuple

import pytest
import torch
from alias_testing import arange, assert_runs_as_eager, Fn, lower
from executorch.exir.error import InternalError
from executorch_slice import disabled
from executorch_slice.cost import program_cost
from functorch.experimental.control_flow import map as map_rows
from torch import Tensor
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

# Takes and returns tensors of shape (4, 6).
Body = Callable[[Tensor, Tensor], Tensor]


def parts(v: Tensor, w: Tensor) -> Tensor:
    y = v * 2
    middle = y.view(24)[6:18].view(2, 6).sum(0)
    return middle + w[1:2] + v.reshape(6, 4)[2:5].reshape(2, 6)[1] + y


def in_cond(predicate: Tensor, body: Body, v: Tensor, w: Tensor) -> Tensor:
    chosen = torch.cond(
        predicate, lambda v, w: body(v[:], w), lambda v, w: body(v + 1, w), (v, w)
    )
    return chosen.view(24)[6:12] + chosen[1:2] + v


def in_map(predicate: Tensor, body: Body, v: Tensor, w: Tensor) -> Tensor:
    rows = map_rows(body, torch.stack([v, w, v + w]), w)
    return rows[1] + rows.view(3, 24)[2:, 6:12] + v


def in_scan(predicate: Tensor, body: Body, v: Tensor, w: Tensor) -> Tensor:
    def step(carried: Tensor, row: Tensor) -> Tuple[Tensor, Tensor]:
        total = body(row, w) + carried
        return total, total[1:3] * 2

    last, rows = scan(step, v, torch.stack([v, w, v + w]))
    return last + rows[1][:1] + rows.view(3, 12)[2, 6:]


def in_while_loop(predicate: Tensor, body: Body, v: Tensor, w: Tensor) -> Tensor:
    def step(i: Tensor, v: Tensor) -> Tuple[Tensor, Tensor]:
        return i + 1, body(v, w) * 0.125

    start = torch.zeros((), dtype=torch.int64)
    _, last = while_loop(lambda i, v: i < 3, step, (start, v))
    return last[1:2] + last.view(24)[6:12] + v


KINDS: Dict[str, Callable[[Tensor, Body, Tensor, Tensor], Tensor]] = {
    "cond": in_cond,
    "map": in_map,
    "scan": in_scan,
    "while_loop": in_while_loop,
}


def program(outer: str, inner: Optional[str]) -> Fn:
    def body(v: Tensor, w: Tensor) -> Tensor:
        return parts(v, w) if inner is None else KINDS[inner](v.sum() > 0, parts, v, w)

    return Fn(lambda p, x, y: KINDS[outer](p, body, x * 2, y))


def inputs(predicate: bool = True) -> Tuple[Any, ...]:
    return torch.tensor(predicate), arange(4, 6), arange(4, 6) + 3


@pytest.mark.parametrize("inner", [None, "cond", "map", "scan"])
@pytest.mark.parametrize("outer", ["cond", "map", "scan"])
def test_right(outer: str, inner: Optional[str]) -> None:
    """Whatever stock says: it gives wrong results for conds, and refuses the others."""
    module = program(outer, inner)
    manager = lower(module, inputs())
    for predicate in (True, False):
        assert_runs_as_eager(module, inputs(predicate), manager)


INNERMOST: Dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "cond": lambda p, v, w: torch.cond(
        p, lambda v, w: v * w, lambda v, w: v - w, (v, w)
    ),
    "map": lambda p, v, w: map_rows(lambda row, w: row * 2 + w[0], v, w),
    "scan": lambda p, v, w: scan(lambda c, row: (c + row, c * row), w[0], v)[1],
}


@pytest.mark.parametrize("no", INNERMOST)
@pytest.mark.parametrize("yes", INNERMOST)
def test_branch_that_has_only_a_branch(yes: str, no: str) -> None:
    """It plans nothing itself, and reserves what is planned inside."""
    module = Fn(
        lambda p, x, y: torch.cond(
            p.sum() > 1,
            lambda p, v, w: INNERMOST[yes](p[0] > 0, v, w),
            lambda p, v, w: INNERMOST[no](p[0] > 0, v, w),
            (p, x, y),
        )
    )
    inputs = tuple(arange(4, 6) + i for i in range(2))
    manager = lower(module, (torch.tensor([1, 0]), *inputs))
    for p in ([0, 0], [1, 0], [0, 2], [1, 1]):
        assert_runs_as_eager(module, (torch.tensor(p), *inputs), manager, rounds=2)


@pytest.mark.parametrize("inner", [None, "cond"])
def test_no_more_memory_than_stock(inner: Optional[str]) -> None:
    module = program("cond", inner)
    with disabled():
        stock = program_cost(lower(module, inputs()))
    assert program_cost(lower(module, inputs())).arena_bytes <= stock.arena_bytes


@pytest.mark.parametrize("outer,inner", [("while_loop", None), ("map", "while_loop")])
def test_refused_as_by_stock(outer: str, inner: Optional[str]) -> None:
    refused = pytest.raises(InternalError, match="Unsupported control flow operator")
    with disabled(), refused:
        lower(program(outer, inner), inputs())
    with refused:
        lower(program(outer, inner), inputs())
