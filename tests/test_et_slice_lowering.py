# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Programs that are lowered to et_slice and et_select, run against eager PyTorch."""

import copy
from typing import Any, Callable, Dict, Iterable, List, Sequence, Tuple

import pytest
import torch
from alias_testing import (
    arange,
    assert_equals_eager,
    assert_runs_as_eager,
    Fn,
    operators,
    slice_kernels,
)
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import (
    EdgeProgramManager,
    ExecutorchProgramManager,
    to_edge,
    to_edge_transform_and_lower,
)
from executorch.exir.passes.memory_planning_pass import MemoryPlanningPass
from executorch_slice import AliasConfig, decisions, ExecutorchBackendConfig
from executorch_slice.compare import LoadedProgram
from executorch_slice.cost import program_cost
from executorch_slice.exir import alias_roots
from test_nested_control_flow import inputs as nested_inputs, program as nested_program
from torch import nn, Tensor
from torch.export import Dim

pytestmark = pytest.mark.usefixtures("kernels")

Lowered = Tuple[ExecutorchProgramManager, ExecutorchProgramManager]

UNPLANNED = MemoryPlanningPass(alloc_graph_input=False)
LOW, HIGH = 5, 16


def export(
    module: nn.Module, inputs: Tuple[Any, ...], dynamic_shapes: Any = None
) -> EdgeProgramManager:
    """Sizes of dim `rows` go from LOW to HIGH; name them as `{position: dim}`."""
    if isinstance(module, Fn) and dynamic_shapes is not None:
        dynamic_shapes = (dynamic_shapes,)
    module = copy.deepcopy(module)
    return to_edge(
        torch.export.export(module, inputs, dynamic_shapes=dynamic_shapes, strict=False)
    )


def lower_both(edge: EdgeProgramManager, **options: Any) -> Lowered:
    """Lowers with the instructions and without; with them no arena is larger."""
    alias = {key: options.pop(key) for key in ALIAS_FIELDS & options.keys()}
    with_kernels, without = (
        copy.deepcopy(edge).to_executorch(
            ExecutorchBackendConfig(
                alias=AliasConfig(emit_et_slice=emit, **alias), **options
            )
        )
        for emit in (True, False)
    )
    assert not any("et_s" in name for name in operators(without))
    if alias.get("memory_growth") != "allow":
        arenas = [program_cost(m).arena_bytes for m in (with_kernels, without)]
        assert arenas[0] <= arenas[1]
    return with_kernels, without


ALIAS_FIELDS = {"memory_growth", "min_alignment"}


def rows_at(position: int = 0) -> Any:
    return ({position: Dim("rows", min=LOW, max=HIGH)},)


def verdicts(manager: ExecutorchProgramManager) -> List[Tuple[str, str]]:
    """Verdict and reason of each copy but views, in graph order."""
    return [
        (d.verdict, d.reason.name) for d in decisions(manager) if "view" not in d.op
    ]


def check(
    manager: ExecutorchProgramManager, fn: Callable[..., Any], runs: Iterable[Any]
) -> LoadedProgram:
    """Copies are the kernels that are left, and each run equals eager, bit for bit."""
    copies = [d for d in decisions(manager) if d.verdict == "copy"]
    slices = [d for d in copies if "slice" in d.op or "select" in d.op]
    assert slice_kernels(manager) == len(slices)
    program = LoadedProgram(manager)
    for inputs in runs:
        assert_equals_eager(program, fn, *inputs)
    return program


def sized(*sizes: int) -> List[Tuple[Tensor, ...]]:
    return [(torch.rand(rows, 3),) for rows in sizes]


Parts = Callable[[Tensor], Sequence[Tensor]]
DENSE: Dict[str, Parts] = {
    "static bounds": lambda y: (y[1:-1], y[2:], y[:-2], y[-3:-1], y[1:4], y[-1:]),
    "out of range": lambda y: (y[2:99], y[-99:4], y[99:100], y[4:2]),
    "symbolic bounds": lambda y: (
        *(y[: y.shape[0] - 1], y[y.shape[0] - 3 :], y[-(y.shape[0] - 2) :]),
        y[y.shape[0] - 4 : y.shape[0] - 1],
    ),
    "one element": lambda y: (y[0:1:3], y[-1::4]),
    "select": lambda y: (y[0], y[-1], y[y.shape[0] - 2], y[3][1]),
    "under a one": lambda y: (
        *(y[None][:, 1:-1], y[None][:, -1], y[None, :, None][:, 2:]),
        y[None, None][:, :, : y.shape[0] - 1],
    ),
    "chains": lambda y: (
        *(y[1:-1][1:], y[1:][:-1][0], y[y.shape[0] - 4 :][1], y[1:4][1:][0]),
        *(y[y.shape[0] - 4 :].reshape(6, 2)[1:3].reshape(4), y[1:5].view(3, 4)[1]),
    ),
}


@pytest.mark.parametrize(
    "name,planned", [*((n, True) for n in DENSE), ("chains", False)]
)
def test_dynamic_rows(name: str, planned: bool) -> None:
    def fn(x: Tensor) -> Tuple[Tensor, ...]:
        return tuple(part + 1 for y in (x, x * 2) for part in DENSE[name](y))

    edge = export(Fn(fn), (arange(8, 3),), rows_at())
    planner = MemoryPlanningPass(alloc_graph_input=planned)
    options = {"memory_planning_pass": planner, "memory_growth": "allow"}
    manager, without = lower_both(edge, **options)
    slices = [d for d in decisions(manager) if "sl" in d.op or "select" in d.op]
    assert slices and {(d.verdict, d.reason.name) for d in slices} == {
        ("kernel", "DYNAMIC")
    }
    assert slice_kernels(manager) == 0 < slice_kernels(without)
    sizes = (8, HIGH, *range(LOW, HIGH + 1), LOW)
    program = check(manager, fn, sized(*sizes))
    for _ in range(2):
        with pytest.raises(RuntimeError):
            program(torch.rand(HIGH + 1, 3))
        (got, *_), (want, *_) = program(torch.ones(LOW, 3)), fn(torch.ones(LOW, 3))
        assert torch.equal(got, want)


NOT_DENSE: Dict[str, Parts] = {
    "columns": lambda y: (y[:, 1:3],),
    "columns of a batch": lambda y: (y[None][:, :, 1:],),
    "one column": lambda y: (y[:, 1],),
    "steps": lambda y: (y[::2], y[1::3]),
}


@pytest.mark.parametrize("name", NOT_DENSE)
def test_what_does_not_lie_together_is_copied(name: str) -> None:
    def fn(x: Tensor) -> Tuple[Tensor, ...]:
        return tuple(part + 1 for part in NOT_DENSE[name](x * 2))

    manager, _ = lower_both(export(Fn(fn), (arange(8, 3),), rows_at()))
    kept = [d for d in decisions(manager) if "sl" in d.op or "select" in d.op]
    assert "DYNAMIC" in {d.reason.name for d in kept if d.verdict == "copy"}
    check(manager, fn, sized(LOW, 8, HIGH))


def test_outputs_are_copied() -> None:
    def fn(x: Tensor) -> Tuple[Tensor, ...]:
        y = x * 2
        return y[1:-1], y[-1], y[2:][1:].reshape(-1), y[2:] + 1

    manager, _ = lower_both(export(Fn(fn), (arange(8, 3),), rows_at()))
    kept = [(d.verdict, d.reason.name) for d in decisions(manager)]
    assert kept.count(("copy", "OUTPUT")) == 3
    assert kept.count(("kernel", "DYNAMIC")) == len(kept) - 3 >= 3
    check(manager, fn, sized(LOW, 8, HIGH))


def test_unplanned_inputs() -> None:
    def fn(x: Tensor, y: Tensor) -> Tuple[Tensor, ...]:
        first, second = x.chunk(2)
        rows = torch.unbind(y[0].unsqueeze(0)[:, 2:5], 1)
        return (
            *(first * second, rows[0] + rows[2], x[1:3][1] + 1, x[-2:].view(6) * 2),
            *(x[1:3].unsqueeze(0)[:, 1] - 1, x.narrow(0, -3, 2) + 1, x[9:] + 1),
        )

    inputs = arange(4, 3), arange(2, 6, 5)
    edge = export(Fn(fn), inputs)
    manager, _ = lower_both(edge, memory_planning_pass=UNPLANNED)
    found = decisions(manager)
    assert {(d.verdict, d.reason.name) for d in found} == {
        ("kernel", "UNPLANNED_INPUT")
    }
    assert {d.byte_offset for d in found} == {0, 12, 24, 40, 80}
    assert {d.base for d in found} == {"args_0", "args_1"}
    check(manager, fn, [(torch.rand(4, 3), torch.rand(2, 6, 5)) for _ in range(3)])


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.rand(HIGH, 3))

    def forward(self, x: Tensor) -> Tuple[Tensor, ...]:
        part = self.table[4:8]
        return (
            *(self.table[: x.shape[0]] + x, part * 2, self.table[7] * 2),
            *(part.view(6, 2)[1:3] + 1, part.unsqueeze(0)[:, 2] + 1, part[1:] - 1),
        )


def test_constants() -> None:
    module = Table()
    manager, without = lower_both(export(module, (arange(8, 3),), rows_at()))
    found = {(d.verdict, d.reason.name) for d in decisions(manager)}
    assert found == {("kernel", "CONSTANT")}
    assert ("kernel", "CONSTANT") not in verdicts(without)
    check(manager, module, sized(8, HIGH, LOW, 8))


@pytest.mark.parametrize(
    "outer,inner", [("cond", None), ("map", "scan"), ("scan", "map")]
)
def test_control_flow(outer: str, inner: Any) -> None:
    module = nested_program(outer, inner)
    manager, _ = lower_both(export(module, nested_inputs()))
    found = verdicts(manager)
    assert ("copy", "CONTROL_FLOW_OPERAND") not in found
    assert ("copy", "CONTROL_FLOW_RESULT") not in found
    assert any(verdict == "kernel" for verdict, _ in found)
    for predicate in (True, False):
        assert_runs_as_eager(module, nested_inputs(predicate), manager)


def test_branches_of_dynamic_size() -> None:
    def fn(p: Tensor, x: Tensor) -> Tensor:
        y = torch.cond(p, lambda v: v[1:] * 2, lambda v: v[:-1] + 1, (x * 2,))
        z = torch.cond(p, lambda v: v + 1, lambda v: v[:] * 3, (x,))
        return y[1:] + y[:-1] + z[2:]

    edge = export(Fn(fn), (torch.tensor(True), arange(8, 3)), (None, *rows_at()))
    manager, _ = lower_both(edge)
    assert "executorch_prim::et_slice" in operators(manager)
    runs = [
        (torch.tensor(p), torch.rand(rows, 3))
        for p in (True, False)
        for rows in (LOW, 8, HIGH)
    ]
    check(manager, fn, runs)


def test_outputs_of_a_delegate_that_moves_them(monkeypatch: Any) -> None:
    monkeypatch.setattr(alias_roots, "IN_PLACE_DELEGATES", frozenset())
    module = nn.Sequential(nn.Linear(3, 4), Fn(lambda y: torch.erf(y[1:4]) - y[-1]))
    exported = torch.export.export(module, (arange(8, 3),))
    edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
    manager, _ = lower_both(edge)
    assert ("kernel", "DELEGATE_OUTPUT") in verdicts(manager)
    assert_runs_as_eager(module, (torch.rand(8, 3),), manager)


def test_conflicts_are_copied() -> None:
    def fn(x: Tensor, row: Tensor) -> Tuple[Tensor, ...]:
        y, z = x * 2, x + 1
        before, written, ones = y[1:-1], z[1:-1], torch.ones(1, 3)
        y = torch.index_put(y, (row,), ones)
        written = torch.index_put(written, (row,), ones)
        return before + 1, y[1:-1] + 1, written - 1, z[2:] + 1

    edge = export(Fn(fn), (arange(8, 3), torch.tensor([1])), (*rows_at(), None))
    manager, _ = lower_both(edge, run_reinplace_pass=True, memory_growth="allow")
    assert sorted(verdicts(manager)) == [
        ("copy", "CONFLICTING_WRITE"),
        ("copy", "WRITTEN"),
        *2 * [("kernel", "DYNAMIC")],
    ]
    runs = [(x, torch.tensor([row])) for row, (x,) in enumerate(sized(LOW, HIGH))]
    check(manager, fn, runs)


def test_what_would_grow_the_arena_is_copied() -> None:
    def fn(x: Tensor) -> Tensor:
        y = x * 2
        few = y[:2]
        return torch.cat([y + 1, y - 1]).amax(0) + few

    edge = export(Fn(fn), (torch.rand(8, 3),), rows_at())
    manager, without = lower_both(edge)
    allowed, _ = lower_both(edge, memory_growth="allow")
    assert verdicts(manager) == [("copy", "WOULD_GROW")]
    assert verdicts(allowed) == [("kernel", "DYNAMIC")]
    grown = program_cost(allowed).arena_bytes - program_cost(without).arena_bytes
    assert grown > 0
    for program in (manager, allowed):
        check(program, fn, sized(LOW, 8, HIGH))


def test_alignment_counts_from_the_base() -> None:
    def fn(x: Tensor, y: Tensor) -> Tuple[Tensor, ...]:
        return x[1:3] + 1, x[2:4] + 1, x[2:][1] + 1, y[1:] + 1

    edge = export(Fn(fn), (arange(4, 3), arange(8, 3)), (None, *rows_at()))
    options = {"min_alignment": 8, "memory_planning_pass": UNPLANNED}
    manager, _ = lower_both(edge, **options)
    misaligned, moved = ("copy", "MISALIGNED"), ("kernel", "UNPLANNED_INPUT")
    assert verdicts(manager) == [misaligned, moved, moved, misaligned, misaligned]
    check(manager, fn, [(arange(4, 3), torch.rand(LOW, 3))])


def test_another_planner_makes_copies() -> None:
    class Planner(MemoryPlanningPass):
        pass

    def fn(x: Tensor) -> Tensor:
        return (x * 2)[1:-1] + 1

    edge = export(Fn(fn), (arange(8, 3),), rows_at())
    manager, _ = lower_both(edge, memory_planning_pass=Planner())
    assert verdicts(manager) == [("copy", "DYNAMIC")]
    check(manager, fn, sized(LOW, HIGH))
