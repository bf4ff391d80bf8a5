# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Slices, views and values that live across control flow, against eager PyTorch."""

from typing import Any, Callable

import pytest
import torch
from alias_testing import arange, assert_runs_as_eager, Fn, lower, operators, reasons
from executorch.exir.passes.memory_planning_pass import MemoryPlanningPass
from executorch_slice import disabled, ExecutorchBackendConfig
from executorch_slice.compare import LoadedProgram
from executorch_slice.exir.verification.plan_verifier import (
    PlanVerificationError,
    verify_plan,
)
from functorch.experimental.control_flow import map as map_rows
from torch import Tensor
from torch._higher_order_ops.scan import scan
from torch.utils._pytree import tree_leaves


def inputs(*tensors: Tensor) -> Any:
    """The same arguments once for each branch."""
    return [(torch.tensor(predicate), *tensors) for predicate in (True, False)]


def check(fn: Callable[..., Any], *tensors: Tensor) -> Any:
    """Lowers once, runs both branches in turn."""
    module, runs = Fn(fn), inputs(*tensors)
    manager = lower(module, runs[0])
    for args in runs:
        assert_runs_as_eager(module, args, manager)
    return manager


def test_slices_around_cond() -> None:
    def fn(p: Tensor, x: Tensor) -> Tensor:
        y = x * 2
        branch = torch.cond(
            p, lambda v: v[1:] + (v * 3)[1:], lambda v: v[:2] * 2 + v[1:], (y[1:],)
        )
        return branch[:1] + x[3:]

    found = reasons(check(fn, arange(4, 6)))
    assert set(found) == {"CONTROL_FLOW_OPERAND", "SAFE"}


def test_slices_of_map_results() -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        rows = map_rows(lambda row, y: (row + y)[1:3] * 2, x, y[1:5])
        return rows[1:] + rows[:1]

    args = (arange(3, 4), arange(6))
    module = Fn(fn)
    manager = lower(module, args)
    assert "CONTROL_FLOW_RESULT" in reasons(manager)
    assert_runs_as_eager(module, args, manager)


def test_views_and_slices_of_the_row() -> None:
    """The row that a map or a scan works on is planned, unlike its other operands."""

    def mapped(_: Tensor, x: Tensor) -> Tensor:
        return map_rows(lambda row: row[1:].reshape(-1) + row.reshape(-1)[5:], x)

    def scanned(carried: Tensor, x: Tensor) -> Any:
        def body(carried: Tensor, row: Tensor) -> Any:
            total = carried + row[1:3].sum() + row.reshape(-1)[5:9].sum() + carried[1]
            return total, total * 2

        return scan(body, carried, x)

    args = (arange(4), arange(3, 4, 5))
    for fn, verdicts in (
        (mapped, ["SAFE"] * 4),
        (scanned, ["SAFE"] * 3 + ["CONTROL_FLOW_OPERAND"]),
    ):
        manager = lower(Fn(fn), args)
        assert reasons(manager) == verdicts
        assert "executorch_prim::et_view" not in operators(manager)
        assert_runs_as_eager(Fn(fn), args, manager)


CONDS = {
    "results alive across": lambda p, x: (
        first := torch.cond(p, lambda v: v * 2, lambda v: v + 5, (x,)),
        torch.cond(p, lambda v: torch.sin(v) * 3, lambda v: v - 1, (x + 1,)),
        first * 1.0,
    ),
    "result as operand": lambda p, x: (
        first := torch.cond(p, lambda v: v.clone(), lambda v: v + 1, (x,)),
        torch.cond(p, lambda v: v * 2, lambda v: v - 1, (first,)),
        first * 1.0,
    ),
    "several results": lambda p, x: [
        r * 1.0
        for r in torch.cond(p, lambda v: (v * 2, v - 1), lambda v: (v + 5, v * 3), (x,))
    ],
    "nested": lambda p, x: torch.cond(
        p,
        lambda v: torch.cond(
            v.sum() > 0, lambda w: w * 2, lambda w: w * 3 + 1, (v + 1,)
        )
        + torch.cond(v.sum() > 9, lambda w: w - 2, lambda w: w - 3, (v,)),
        lambda v: torch.cond(v.sum() > 0, lambda w: w + 7, lambda w: w - 7, (v,)),
        (x,),
    )
    * 2,
    "nested and returned": lambda p, x: torch.cond(
        p,
        lambda v: torch.cond(v.sum() > 0, lambda w: w * 2, lambda w: w * 3, (v,)),
        lambda v: v - 1,
        (x,),
    )
    + x,
    "view of a result": lambda p, x: torch.cond(
        p, lambda v: v * 2, lambda v: v + 5, (x,)
    ).reshape(-1)[3:9]
    + 1,
    "view of an operand": lambda p, x: torch.cond(
        p, lambda v: v.reshape(-1) * 2, lambda v: v.reshape(-1) + 5, (x,)
    ),
    "result is output": lambda p, x: torch.cond(
        p, lambda v: v * 2, lambda v: v + 5, (x,)
    ),
    "slice in a branch as result": lambda p, x: torch.cond(
        p, lambda v: (v * 2)[1:3], lambda v: (v + 5)[1:3], (x,)
    )
    * 2,
}


@pytest.mark.parametrize("name", CONDS)
def test_cond(name: str) -> None:
    check(CONDS[name], arange(4, 6))


@pytest.mark.parametrize("name", CONDS)
def test_cond_without_planned_outputs(name: str) -> None:
    """Callers provide the memory of outputs; branches must not come to write there."""
    module, runs = Fn(CONDS[name]), inputs(arange(4, 6))
    config = ExecutorchBackendConfig(
        memory_planning_pass=MemoryPlanningPass(alloc_graph_output=False)
    )
    program = LoadedProgram(lower(module, runs[0], config))
    kept = []
    for round_ in range(6):
        predicate, x = runs[round_ % 2]
        outputs = program(predicate, x + round_)
        wanted = module(predicate, x + round_)
        kept.append((outputs, wanted))
    for got, want in kept:
        assert all(map(torch.allclose, got, tree_leaves(want)))


def test_stock_hands_out_what_branches_write_later() -> None:
    """Not run: it corrupts the heap. Fails when upstream mends it."""
    name = "result is output"
    config = ExecutorchBackendConfig(
        memory_planning_pass=MemoryPlanningPass(alloc_graph_output=False)
    )
    with disabled():
        stock = lower(Fn(CONDS[name]), inputs(arange(4, 6))[0], config)
    with pytest.raises(PlanVerificationError, match="a branch's own tensor"):
        verify_plan(stock.exported_program())
