# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Copies that move nothing, in programs that run."""

from typing import Any, Callable, List, Tuple

import pytest
import torch
from alias_testing import (
    all_safe_aliases,
    arange,
    assert_runs_as_eager,
    Fn,
    lower,
    operators,
    reasons,
)
from executorch.exir.passes.memory_planning_pass import MemoryPlanningPass
from executorch_slice import decisions, disabled
from executorch_slice.compare import LoadedProgram
from executorch_slice.cost import program_cost
from torch import nn, Tensor

LAST = torch.channels_last
FREE = (
    "aten::unsqueeze_copy",
    "aten::squeeze_copy",
    "aten::permute_copy",
    "aten::transpose_copy",
    "aten::expand_copy",
    "aten::repeat",
    "aten::alias_copy",
    "aten::detach_copy",
    "aten::lift_fresh_copy",
    "aten::clone",
    "dim_order_ops::_clone_dim_order",
    "executorch_prim::et_view",
)


def free_copies(manager: Any) -> List[str]:
    return [name for name in operators(manager) if name in FREE]


ALONE = {
    "unsqueeze": lambda x: x.unsqueeze(1),
    "squeeze": lambda x: x.squeeze(),
    "squeeze dim": lambda x: x.squeeze(0),
    "squeeze dims": lambda x: x.squeeze((0, 3)),
    "permute": lambda x: x.permute(1, 0, 3, 2),
    "transpose": lambda x: x.transpose(0, 1),
    "expand": lambda x: x.expand(1, 4, 6, 1),
    "repeat": lambda x: x.repeat(1, 1, 1, 1, 1),
    "alias": lambda x: torch.ops.aten.alias_copy.default(x),
    "detach": lambda x: x.detach(),
    "clone": lambda x: x.clone(),
    "contiguous": lambda x: x.contiguous(),
    "to": lambda x: x.to(torch.float32, copy=True),
    "reshape": lambda x: x.reshape(6, 4),
}


@pytest.mark.parametrize(
    "op,skip_dim_order",
    [
        *((op, False) for op in ALONE),
        ("clone", True),
        ("contiguous", True),
        ("to", True),
    ],
)
def test_alone(op: str, skip_dim_order: bool) -> None:
    module = Fn(lambda x: ALONE[op](-x).abs())
    inputs = (arange(1, 4, 6, 1),)
    manager = lower(module, inputs, skip_dim_order=skip_dim_order)
    assert_runs_as_eager(module, inputs, manager)
    assert free_copies(manager) == []
    assert program_cost(manager).instructions == 2


CHAINS = {
    "squeeze of select of split": lambda x: x.split(2)[1].select(0, 1).squeeze(0),
    "unbind": lambda x: x.unbind(0)[2],
    "view of unsqueeze of slice": lambda x: x[1:3].unsqueeze(0).view(12, 1),
    "slice of a permute of ones": lambda x: x.unsqueeze(1).permute(1, 0, 2)[:, 2:],
    "clone of slice of clone": lambda x: x.clone()[1:].clone(),
    "select of expand of select": lambda x: x[2].expand(1, 1, 6)[0].repeat(1, 1),
}


@pytest.mark.parametrize("chain", CHAINS)
def test_chain(chain: str) -> None:
    """No instruction, and no tensor for what only other aliases read."""
    module, plain = Fn(lambda x: CHAINS[chain](-x).abs()), Fn(lambda x: (-x).abs())
    inputs = (arange(4, 1, 6) if "squeeze of" in chain else arange(4, 6),)
    manager = lower(module, inputs)
    assert_runs_as_eager(module, inputs, manager)
    assert set(reasons(manager)) == {"SAFE"}
    (plan,) = manager.executorch_program.execution_plan
    (want,) = lower(plain, inputs).executorch_program.execution_plan
    assert len(plan.chains[0].instructions) == 2
    assert len(plan.values) == len(want.values) + 1


class Counter(nn.Module):
    """A state that is written after a clone of it was taken."""

    def __init__(self, fn: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(2, 3))
        self.fn = fn

    def forward(self, x: Tensor) -> Any:
        return self.fn(self.state, x)


def before_write(state: Tensor, x: Tensor) -> Any:
    old = state.clone()
    state.add_(x)
    return old * 2, state + 0


def before_write_in_chain(state: Tensor, x: Tensor) -> Any:
    old = state.unsqueeze(0).clone().squeeze(0)[1:]
    state.copy_(x)
    return old * 2


def written_clone(state: Tensor, x: Tensor) -> Any:
    new = state.clone()
    new.add_(x)
    state.add_(1)
    return new * 2, state * 3


def row_of_clone(state: Tensor, x: Tensor) -> Any:
    saved = state.clone()
    state.index_put_((torch.tensor([0]),), x[:1])
    return saved[0] + state[1], saved - state


def after_write(state: Tensor, x: Tensor) -> Any:
    state.add_(x)
    return state.clone() * 2


@pytest.mark.parametrize("reinplace", [False, True])
@pytest.mark.parametrize(
    "fn",
    [before_write, before_write_in_chain, written_clone, row_of_clone, after_write],
)
def test_clone_that_protects(
    fn: Callable[[Tensor, Tensor], Any], reinplace: bool
) -> None:
    """It is kept where the state is written before the clone was read, else free."""
    module, inputs = Counter(fn), (arange(2, 3),)
    manager = lower(module, inputs, all_safe_aliases(run_reinplace_pass=reinplace))
    assert_runs_as_eager(module, inputs, manager, rounds=4)
    kept = reinplace and fn is row_of_clone
    assert ("CONFLICTING_WRITE" in reasons(manager)) == kept


@pytest.mark.parametrize("reinplace", [False, True])
@pytest.mark.parametrize("read_again", [False, True])
def test_clone_of_an_input_that_is_written(read_again: bool, reinplace: bool) -> None:
    def fn(x: Tensor) -> Any:
        old = x.clone()
        x.index_put_((torch.tensor([1]),), x[:1] * 3)
        return old + (x if read_again else 1)

    manager = lower(
        Fn(fn), (arange(2, 3),), all_safe_aliases(run_reinplace_pass=reinplace)
    )
    for round_ in range(3):
        *_, got = LoadedProgram(manager)(arange(2, 3) + round_)
        torch.testing.assert_close(got, fn(arange(2, 3) + round_))


CHANNELS_LAST = {
    "slice of H": lambda x: x[:, :, 1:3],
    "slice of C": lambda x: x[:, 1:2],
    "slice of N": lambda x: x[1:],
    "select of N": lambda x: x[1],
    "select of W": lambda x: x[..., 2],
    "chunk of N": lambda x: torch.ops.aten.add(*x.chunk(2)),
    "squeeze": lambda x: x[:1].squeeze(0),
    "unsqueeze": lambda x: x.unsqueeze(0),
    "view": lambda x: x.view(2, 4, 30),
    "permute": lambda x: x.permute(3, 0, 1, 2),
    "repeat": lambda x: x.repeat(1, 1, 1, 2),
}


@pytest.mark.parametrize("op", CHANNELS_LAST)
def test_channels_last_base(op: str) -> None:
    """Stock fails when such a program runs, or gives other values than eager."""
    module = Fn(lambda x: CHANNELS_LAST[op](-x).abs())
    inputs = (arange(2, 4, 5, 6).contiguous(memory_format=LAST),)
    assert_runs_as_eager(module, inputs, lower(module, inputs))
    with disabled():
        stock = lower(module, inputs)
    try:
        (got,) = LoadedProgram(stock)(*inputs)
    except RuntimeError:
        return
    assert not torch.equal(got, module(*inputs))


def test_channels_last_clone_and_nhwc() -> None:
    """What has the same bytes in the dim order of its result costs nothing."""
    module = Fn(lambda x: ((-x).clone().abs(), (-x).permute(0, 2, 3, 1).abs()))
    inputs = (arange(2, 4, 5, 6).contiguous(memory_format=LAST),)
    manager = lower(module, inputs)
    assert_runs_as_eager(module, inputs, manager)
    assert set(reasons(manager)) == {"SAFE"}
    assert free_copies(manager) == []


@pytest.mark.parametrize("planned", [(False, True), (True, False), (False, False)])
def test_unplanned_io(planned: Tuple[bool, bool]) -> None:
    """An instruction points the result at the caller's memory; nothing is copied."""
    planner = MemoryPlanningPass(
        alloc_graph_input=planned[0], alloc_graph_output=planned[1]
    )
    module = Fn(lambda x: (x.unsqueeze(0).clone() + 1).squeeze(0).clone())
    inputs = (arange(4, 6),)
    manager = lower(module, inputs, all_safe_aliases(memory_planning_pass=planner))
    assert_runs_as_eager(module, inputs, manager)
    verdicts = [d.verdict for d in decisions(manager)]
    first = "alias" if planned[0] else "kernel"
    assert verdicts == [first, first, "alias", "copy"]


def test_returned() -> None:
    module = Fn(lambda x: ((-x).unsqueeze(0), x.clone()))
    manager = lower(module, (arange(4, 6),))
    assert_runs_as_eager(module, (arange(4, 6),), manager)
    assert reasons(manager) == ["OUTPUT", "OUTPUT"]


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", arange(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table.unsqueeze(0).clone() + self.table


def test_all_of_a_constant() -> None:
    """Both tensors are the same bytes of the program: it does not grow."""
    manager = lower(Table(), (arange(1, 4, 6),))
    assert_runs_as_eager(Table(), (arange(1, 4, 6),), manager)
    assert reasons(manager) == ["SAFE", "SAFE"]
    assert free_copies(manager) == []
    with disabled():
        stock = lower(Table(), (arange(1, 4, 6),))
    assert len(manager.buffer) <= len(stock.buffer)
