# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Slices of every kind on the ExecuTorch runtime, against eager PyTorch."""

from contextlib import nullcontext
from typing import Any, Callable, Dict, Tuple

import pytest
import torch
from alias_testing import (
    all_safe_aliases,
    arange,
    assert_runs_as_eager,
    Fn,
    lower,
    reasons,
    slice_kernels,
)
from executorch.exir import ExecutorchBackendConfig, to_edge
from executorch.exir.memory_planning import greedy, MemoryPlanningAlgorithmSuite, naive
from executorch.exir.passes.memory_planning_pass import MemoryPlanningPass
from executorch_slice import (
    AliasConfig,
    decisions,
    disabled,
    ExecutorchBackendConfig as AliasBackendConfig,
)
from torch import Tensor
from torch.export import Dim


ALIASED: Dict[str, Tuple[Callable[[Tensor], Any], Tuple[int, ...]]] = {
    "rows": (lambda y: y[1:3] + 1, (4, 6)),
    "end past the size": (lambda y: y[2:99] + 1, (4, 6)),
    "nothing": (lambda y: y[99:100] + 1, (4, 6)),
    "start before the first": (lambda y: y[-99:2] + 1, (4, 6)),
    "last row": (lambda y: y[-1:] + 1, (4, 6)),
    "last token of batch 1": (lambda y: y[:, -1:] + 1, (1, 4, 6)),
    "select last token of batch 1": (lambda y: y[:, -1, :] + 1, (1, 4, 6)),
    "dim 2 under ones": (lambda y: y[:, :, 1:3] + 1, (1, 1, 4, 6)),
    "step with one element left": (lambda y: y[1::3] + 1, (4, 6)),
    "select": (lambda y: y[2] + 1, (4, 6)),
    "select to 0-d": (lambda y: y[3] + 1, (6,)),
    "narrow": (lambda y: y.narrow(0, 1, 2) + 1, (4, 6)),
    "chunk": (lambda y: sum(y.chunk(2)), (4, 6)),
    "uneven chunk": (lambda y: torch.cat(y.chunk(3)[::-1]), (4, 6)),
    "split": (lambda y: torch.cat(y.split(3)[::-1]), (4, 6)),
    "split sizes": (lambda y: torch.cat(y.split([1, 2, 1])[::-1]), (4, 6)),
    "channel split of batch 1": (lambda y: sum(y.chunk(2, 1)), (1, 4, 3, 3)),
    "tensor_split": (lambda y: torch.cat(y.tensor_split(3)[::-1]), (4, 6)),
    "slice of slice": (lambda y: y[1:][1:3][-1:] + 1, (5, 6)),
    "slice of view": (lambda y: y.view(12, 2)[5:9] + 1, (4, 6)),
    "view of slice": (lambda y: y[1:3].reshape(3, 4) + 1, (4, 6)),
    "view of slice of view": (lambda y: y.view(24)[4:16].view(3, 4)[1] + 1, (4, 6)),
    "select of chunk": (lambda y: y.chunk(2)[1][0] + 1, (4, 6)),
    "same slice twice": (lambda y: y[1:3] * y[1:3], (4, 6)),
    "overlapping slices": (lambda y: y[0:3] - y[1:4], (4, 6)),
    "reader much later": (lambda y: (y * 3 + 1).sum() * 2 + y[1:3], (4, 6)),
}


@pytest.mark.parametrize("skip_dim_order", [False, True])
@pytest.mark.parametrize("name", ALIASED)
def test_aliased(name: str, skip_dim_order: bool) -> None:
    fn, shape = ALIASED[name]
    for module in (Fn(lambda x: fn(x * 2)), Fn(fn)):  # a computed base, and an input
        inputs = (arange(*shape),)
        manager = lower(module, inputs, skip_dim_order=skip_dim_order)
        assert set(reasons(manager)) == {"SAFE"}
        assert slice_kernels(manager) == 0
        assert_runs_as_eager(module, inputs, manager)


KEPT: Dict[str, Tuple[Callable[[Tensor], Any], Tuple[int, ...], str]] = {
    "columns": (lambda y: y[:, 1:3] + 1, (4, 6), "NOT_DENSE"),
    "every other row": (lambda y: y[::2] + 1, (4, 6), "NOT_DENSE"),
    "rotary halves": (lambda y: torch.cat([-y[..., 3:]]), (1, 4, 6), "NOT_DENSE"),
    "batch 2": (lambda y: y[:, -1] + 1, (2, 4, 6), "NOT_DENSE"),
    "output": (lambda y: y[1:3], (4, 6), "OUTPUT"),
    "output and more": (lambda y: (y[1:3], y[1:3] + 1), (4, 6), "OUTPUT"),
}


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    fn, shape, reason = KEPT[name]
    module, inputs = Fn(lambda x: fn(x * 2)), (arange(*shape),)
    manager = lower(module, inputs)
    assert reason in reasons(manager)
    assert slice_kernels(manager) == sum(
        d.verdict == "copy" for d in decisions(manager)
    )
    assert_runs_as_eager(module, inputs, manager)


DTYPES = {
    torch.bool: torch.logical_not,
    torch.uint8: torch.neg,
    torch.int8: torch.neg,
    torch.int16: torch.neg,
    torch.int32: torch.neg,
    torch.int64: torch.neg,
    torch.float16: torch.neg,
    torch.bfloat16: lambda y: y + y,
    torch.float64: torch.neg,
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    op = DTYPES[dtype]
    module = Fn(lambda x: (op(x[1:3]), op(op(x)[4]), op(x)[1:].view(12)[7:] + x[0, 0]))
    if dtype is torch.bool:
        module = Fn(lambda x: (op(x[1:3]), op(op(x)[4])))
    inputs = (arange(5, 3, dtype=dtype),)
    manager = lower(module, inputs)
    assert slice_kernels(manager) == 0
    assert_runs_as_eager(module, inputs, manager)


class Buffered(torch.nn.Module):
    """A ring of frames: reads parts of its state, then shifts a new frame in."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frames", torch.zeros(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        window = torch.cat([self.frames[1:], x])
        newest = window[-1:] + self.frames[:1]
        self.frames.copy_(window)
        return newest + self.frames[2]


class ReadsOldState(Buffered):
    def forward(self, x: Tensor) -> Tensor:
        old = self.frames[1:3].clone()
        self.frames.copy_(self.frames + x)
        return old * 2 + self.frames[1:3]


class SwapsState(torch.nn.Module):
    """Each buffer gets a part of the other: one write-back overtakes the slice."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", arange(4, 6))
        self.register_buffer("b", -arange(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        head, tail = self.a[:2] + 0, self.b[2:]
        self.a.copy_(torch.cat([tail, self.a[1:3]]))
        self.b.copy_(torch.cat([head, x]))
        return self.a[1] + self.b[1]


STATEFUL = [(Buffered(), arange(1, 6)), (ReadsOldState(), arange(1, 6))]
STATEFUL.append((SwapsState(), arange(2, 6)))


@pytest.mark.parametrize("module,x", STATEFUL, ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("share", [False, True])
def test_mutable_buffers(module: torch.nn.Module, x: Tensor, share: bool) -> None:
    planner = MemoryPlanningPass(share_mutable_buffers=share)
    config = all_safe_aliases(memory_planning_pass=planner)
    if isinstance(module, SwapsState):
        from executorch.exir.passes.init_mutable_pass import (
            InitializedMutableBufferPass,
        )

        config.passes = [InitializedMutableBufferPass(["a", "b"])]
    manager = lower(module, (x,), config)
    assert "SAFE" in reasons(manager)
    assert_runs_as_eager(module, (x,), manager, rounds=5)


PLANNERS = {
    "greedy": {},
    "naive": dict(memory_planning_algo=MemoryPlanningAlgorithmSuite([naive])),
    "both": dict(memory_planning_algo=MemoryPlanningAlgorithmSuite([naive, greedy])),
    "inputs unplanned": dict(alloc_graph_input=False),
    "outputs unplanned": dict(alloc_graph_output=False),
    "i/o unplanned": dict(alloc_graph_input=False, alloc_graph_output=False),
    "shared buffers": dict(share_mutable_buffers=True),
    "i/o unplanned, shared buffers": dict(
        alloc_graph_input=False, alloc_graph_output=False, share_mutable_buffers=True
    ),
    "alignment 64": dict(alignment=64),
}


class Everything(Buffered):
    def forward(self, x: Tensor) -> Tuple[Tensor, ...]:
        y = x * 2
        state = self.frames[1:3] + x[2:]
        self.frames.copy_(self.frames + y)
        return y, y[1:3] + 1, x[-1:].view(6) + y.chunk(2)[1][0], state


@pytest.mark.parametrize("planner", PLANNERS)
def test_planners(planner: str) -> None:
    kwargs = PLANNERS[planner]
    config = all_safe_aliases(memory_planning_pass=MemoryPlanningPass(**kwargs))
    module, inputs = Everything(), (arange(4, 6),)
    manager = lower(module, inputs, config)
    found = reasons(manager)
    assert found.count("UNPLANNED_INPUT") == (2 if "alloc_graph_input" in kwargs else 0)
    assert ("UNPLANNED_OUTPUT" in found) == ("alloc_graph_output" in kwargs)
    assert "SAFE" in found  # the state's slice in any case
    assert_runs_as_eager(module, inputs, manager)


def test_unplanned_mutable_buffers() -> None:
    planner = MemoryPlanningPass(alloc_mutable_buffers=False)
    config = all_safe_aliases(
        memory_planning_pass=planner, emit_mutable_buffer_names=True
    )
    manager = lower(Everything(), (arange(4, 6),), config)
    assert "UNPLANNED_BUFFER" in reasons(manager)


class OwnPlanner(MemoryPlanningPass):
    pass


def own_algorithm(alignment: int, specs: Any, *args: Any) -> Any:
    return MemoryPlanningAlgorithmSuite()(alignment, specs, *args)


CUSTOM = {
    "subclass": OwnPlanner(),
    "algorithm": MemoryPlanningPass(memory_planning_algo=own_algorithm),
    "callable": lambda graph_module: MemoryPlanningPass().run(graph_module),
}


@pytest.mark.parametrize("kind", CUSTOM)
def test_custom_planner_keeps_its_copies(kind: str) -> None:
    config = all_safe_aliases(memory_planning_pass=CUSTOM[kind])
    module, inputs = Fn(lambda x: (x * 2)[1:3] + 1), (arange(4, 6),)
    manager = lower(module, inputs, config)
    assert reasons(manager) == ["CUSTOM_PLANNER"]
    assert slice_kernels(manager) == 1
    assert_runs_as_eager(module, inputs, manager)


OFF = {
    "alias off": AliasBackendConfig(alias=AliasConfig(enabled=False)),
    "views off": ExecutorchBackendConfig(remove_view_copy=False),
    "views off, alias on": AliasBackendConfig(remove_view_copy=False),
}


@pytest.mark.parametrize("kind", OFF)
def test_switched_off_is_stock(kind: str) -> None:
    module, inputs = Fn(lambda x: (x * 2)[1:3].view(12) + 1), (arange(4, 6),)
    manager = lower(module, inputs, OFF[kind])
    assert reasons(manager) == ["SWITCHED_OFF"]
    with disabled():
        stock = lower(
            module,
            inputs,
            ExecutorchBackendConfig(remove_view_copy=OFF[kind].remove_view_copy),
        )
    assert manager.buffer == stock.buffer
    assert decisions(stock) == []


@pytest.mark.parametrize("stock_again", [False, True])
def test_lowered_again(stock_again: bool) -> None:
    """A second lowering meets out variants, of which no memory is known, and copies."""
    module = Fn(lambda x: (y := x * 2)[1:3] + 1 + y[2] + y.view(24)[:6] + y.chunk(4)[1])
    inputs = (arange(4, 6),)
    edge = to_edge(torch.export.export(module, inputs))
    first = edge.to_executorch(all_safe_aliases())
    assert slice_kernels(first) == 0
    with disabled() if stock_again else nullcontext():
        again = edge.to_executorch()
    unknown = ["UNKNOWN_BASE"] * 2 + ["SAFE"] + ["UNKNOWN_BASE"] * 2  # SAFE: the view
    assert reasons(again) == ([] if stock_again else unknown)
    assert slice_kernels(again) == 4
    assert reasons(first) == ["SAFE"] * 5
    assert_runs_as_eager(module, inputs, again)


def test_stock_lowers_a_cond_again() -> None:
    """Results that branches were given to place are stock's again."""
    module = Fn(lambda x: torch.cond(x.sum() > 0, torch.neg, torch.sin, (x * 2,)) + x)
    edges = [to_edge(torch.export.export(module, (arange(4, 6),))) for _ in range(2)]
    edges[0].to_executorch()
    with disabled():
        edges[1].to_executorch()
        again, stock_again = (edge.to_executorch() for edge in edges)
    assert again.buffer == stock_again.buffer


def test_multimethod() -> None:
    state = Buffered()
    x = arange(1, 6)
    programs = {
        "encode": torch.export.export(
            Fn(lambda x: (x * 2)[:, 1:3] + 1), (arange(1, 4, 6),)
        ),
        "forward": torch.export.export(state, (x,)),
    }
    config = all_safe_aliases(
        memory_planning_pass={
            "encode": MemoryPlanningPass(alloc_graph_input=False),
            "forward": MemoryPlanningPass(),
        }
    )
    manager = to_edge(programs).to_executorch(config)
    assert {d.method for d in decisions(manager)} == {"encode", "forward"}
    assert slice_kernels(manager) == 0
    assert_runs_as_eager(Buffered(), (x,), manager)


def dynamic(fn: Callable[..., Any], x: Tensor) -> Any:
    dim = Dim("n", min=3, max=16)
    return lower(Fn(fn), (x,), dynamic_shapes=((({0: dim},)),))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x * 2)[1:3] + 1,
        lambda x: (x * 2)[1:] + 1,
        lambda x: (x * 2)[: x.shape[0] - 1] + 1,
        lambda x: (x * 2)[-1] + 1,
    ],
)
def test_dynamic_shapes(fn: Callable[..., Any]) -> None:
    manager = dynamic(fn, arange(5, 6))
    assert set(reasons(manager)) == {"DYNAMIC"}
    for n in (3, 5, 16):
        assert_runs_as_eager(Fn(fn), (arange(n, 6),), manager)


def test_unbacked_symint() -> None:
    def fn(x: Tensor, n: Tensor) -> Tensor:
        length = n.item()
        torch._check(length >= 1)
        torch._check(length <= 4)
        return (x * 2)[:length] + 1

    inputs = (arange(4, 6), torch.tensor(3))
    manager = lower(Fn(fn), inputs)
    assert set(reasons(manager)) == {"DYNAMIC"}
    assert_runs_as_eager(Fn(fn), inputs, manager)
