# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Programs that ExecuTorch 1.5.1 lowers to wrong results, and that come out right here.

A test that finds one of them right without this package tells that ExecuTorch has
been repaired: then the seam that repairs it here may go.
"""

from dataclasses import dataclass
from typing import Any, Callable, Dict, Tuple

import pytest
import torch
from alias_testing import all_safe_aliases, assert_runs_as_eager, Fn, lower
from executorch_slice import disabled
from executorch_slice.exir.verification.plan_verifier import (
    PlanVerificationError,
    verify_plan,
)
from functorch.experimental.control_flow import map as map_rows
from torch import nn, Tensor

ROWS, NEW = torch.tensor([0, 2]), torch.tensor([[-1.0], [-2.0]]).expand(2, 6).clone()


def matrix(*shape: int) -> Tensor:
    """Positive values, all different."""
    return torch.arange(1.0, 1.0 + torch.Size(shape).numel()).reshape(shape)


def view_read_after_its_base_is_written(
    x: Tensor, rows: Tensor, new: Tensor
) -> Tuple[Tensor, Tensor]:
    scaled = x * 3.0
    flat = scaled.view(24)
    return torch.index_put(scaled, [rows], new).neg(), flat.neg()


def in_place_result_read_late(
    x: Tensor, rows: Tensor, new: Tensor
) -> Tuple[Tensor, Tensor]:
    filled = torch.index_put(x + 100.0, [rows], new)
    return x.neg().sin(), filled.neg()


class OldStateThroughAView(nn.Module):
    """Returns what the state was, and takes in new rows."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("history", torch.zeros(4, 6))

    def forward(self, x: Tensor, rows: Tensor, new: Tensor) -> Tensor:
        old = torch.view_copy(self.history, [6, 4])
        self.history.index_put_((rows,), new)
        return old.neg()


def view_of_a_branch_result(predicate: Tensor, x: Tensor) -> Tensor:
    chosen = torch.cond(predicate, lambda v: v.neg(), lambda v: v * v, (x,))
    return chosen.view(3, 8) * 2.0


def view_of_a_loop_operand(rows: Tensor, shift: Tensor) -> Tensor:
    return map_rows(lambda row, shift: row - shift.view(6), rows, shift)


def first_branch_result_read_after_a_second_cond(
    predicate: Tensor, x: Tensor
) -> Tuple[Tensor, Tensor]:
    kept = torch.cond(predicate, lambda v: v.neg(), lambda v: v * v, (x,))
    other = torch.cond(
        predicate, lambda v: v.sin().exp(), lambda v: v + 9.0, (x * 0.5,)
    )
    return other.neg(), kept.neg()


def branch_result_passed_to_a_second_cond(
    predicate: Tensor, x: Tensor
) -> Tuple[Tensor, Tensor]:
    kept = torch.cond(predicate, lambda v: v.neg(), lambda v: v * v, (x,))
    other = torch.cond(predicate, lambda v: v * 3.0, lambda v: v - 4.0, (kept,))
    return other.neg(), kept.neg()


@dataclass(frozen=True)
class Case:
    """A program, inputs for each way through it, and when stock goes wrong."""

    module: nn.Module
    runs: Tuple[Tuple[Any, ...], ...]
    reinplace: bool = False


def written(module: nn.Module) -> Case:
    return Case(module, ((matrix(4, 6), ROWS, NEW),), reinplace=True)


def branching(fn: Callable[..., Any]) -> Case:
    runs = tuple((torch.tensor(side), matrix(4, 6)) for side in (True, False))
    return Case(Fn(fn), runs)


CASES: Dict[str, Case] = {
    "view, base written": written(Fn(view_read_after_its_base_is_written)),
    "in-place result": written(Fn(in_place_result_read_late)),
    "view of a state": written(OldStateThroughAView()),
    "view of a branch result": branching(view_of_a_branch_result),
    "view of a loop operand": Case(
        Fn(view_of_a_loop_operand), ((matrix(3, 6), matrix(2, 3)),)
    ),
    "two conds": branching(first_branch_result_read_after_a_second_cond),
    "cond of a cond": branching(branch_result_passed_to_a_second_cond),
}


def run(case: Case, manager: Any) -> None:
    for args in case.runs:
        assert_runs_as_eager(case.module, args, manager, rounds=3)


@pytest.mark.parametrize("name", CASES)
def test_wrong_without_this_package(name: str) -> None:
    case = CASES[name]
    config = all_safe_aliases(run_reinplace_pass=case.reinplace)
    with disabled():
        stock = lower(case.module, case.runs[0], config)
    with pytest.raises(PlanVerificationError):
        verify_plan(stock.exported_program())
    with pytest.raises(AssertionError, match="not close"):
        run(case, stock)


@pytest.mark.parametrize("reinplace", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_right_with_this_package(name: str, reinplace: bool) -> None:
    case = CASES[name]
    config = all_safe_aliases(run_reinplace_pass=reinplace)
    manager = lower(case.module, case.runs[0], config)
    verify_plan(manager.exported_program())
    run(case, manager)
