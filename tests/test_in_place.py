# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Aliases of tensors that are written in place, read before and after the write."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, Callable, Dict, List, Optional, Tuple

import pytest
import torch
from alias_testing import all_safe_aliases, shifted
from executorch.exir import ExecutorchProgramManager, to_edge
from executorch.exir.dialects._ops import ops
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
from executorch.exir.passes.reinplace import reinplace_pass
from executorch_slice import decisions
from executorch_slice.compare import LoadedProgram
from planned_program import PlannedProgram
from torch import nn, Tensor
from torch.export.graph_signature import OutputKind
from torch.utils._pytree import tree_leaves

LIBRARY = torch.library.Library("in_place_tests", "DEF")
CUSTOM = torch.ops.in_place_tests


def _define(schema: str, kernel: Callable[..., Any]) -> None:
    LIBRARY.define(schema)
    name = schema.partition("(")[0]
    LIBRARY.impl(name, kernel, "CompositeExplicitAutograd")


def _update(x: Tensor, by: Tensor) -> Tensor:
    x.mul_(2).add_(by)
    return x + 1


def _update_both(x: Tensor, y: Tensor) -> Tuple[Tensor, Tensor]:
    x.add_(y)
    y.mul_(3)
    return x + 1, y + 1


def _into(*outs: Tensor, values: Any) -> Any:
    for out, value in zip(outs, tree_leaves(values)):
        out.copy_(value)
    return outs if len(outs) > 1 else outs[0]


_define("update(Tensor(a!) x, Tensor by) -> Tensor", _update)
_define(
    "update.out(Tensor(a!) x, Tensor by, *, Tensor(b!) out) -> Tensor(b!)",
    lambda x, by, *, out: _into(out, values=_update(x, by)),
)
_define("update_both(Tensor(a!) x, Tensor(b!) y) -> (Tensor, Tensor)", _update_both)
_define(
    "update_both.out(Tensor(a!) x, Tensor(b!) y, *, Tensor(c!) out0, Tensor(d!) out1)"
    " -> (Tensor(c!), Tensor(d!))",
    lambda x, y, *, out0, out1: _into(out0, out1, values=_update_both(x, y)),
)
_define("shift(Tensor self) -> Tensor", lambda self: self * 2 + 7)
_define(
    "shift.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
    lambda self, *, out: out.copy_(self * 2 + 7),
)
_define("shift_(Tensor(a!) self) -> Tensor(a!)", lambda self: self.mul_(2).add_(7))


@dataclass(frozen=True)
class Write:
    """A way to write a tensor in place.

    Attributes:
        run: takes the tensor, row numbers and a number; returns what is written.
        mutate: the same, as PyTorch writes a tensor in place, if it can.
        in_runtime: whether the runtime has the kernel.
        reinplace: whether `run_reinplace_pass` is set.
        extra: the functional op in `reinplace_extra_ops`.
        override: the in-place form that a backend registers for `extra`.
        in_place: whether it is rewritten to write where the tensor lies, at once.
    """

    run: Callable[[Tensor, Tensor, Tensor], Tensor]
    mutate: Optional[Callable[[Tensor, Tensor, Tensor], Tensor]] = None
    in_runtime: bool = False
    reinplace: bool = False
    extra: Any = None
    override: Any = None
    in_place: bool = True


def _put(x: Tensor, rows: Tensor, new: Tensor) -> Tensor:
    return torch.index_put(x, [rows], x[rows] * new)


def _put_(x: Tensor, rows: Tensor, new: Tensor) -> Tensor:
    return x.index_put_((rows,), x[rows] * new)


def _updated(x: Tensor, rows: Tensor, new: Tensor) -> Tensor:
    CUSTOM.update(by=new, x=x)
    return x


def _both_updated(x: Tensor, rows: Tensor, new: Tensor) -> Tensor:
    """The tensor is the second argument that is written; all is read."""
    other = x * new
    first, second = CUSTOM.update_both(other, x)
    return x + first + second + other


edge = ops.edge
WRITES: Dict[str, Write] = {
    "copy_": Write(_put, _put_, in_runtime=True, in_place=False),
    "index_put": Write(_put, _put_, in_runtime=True, reinplace=True),
    "add": Write(
        lambda x, rows, new: x + new,
        lambda x, rows, new: x.add_(new),
        extra=edge.aten.add.Tensor,
    ),
    "relu": Write(
        lambda x, rows, new: torch.relu(x),
        lambda x, rows, new: torch.relu_(x),
        extra=edge.aten.relu.default,
    ),
    "minimum": Write(
        lambda x, rows, new: torch.minimum(x, new),
        in_runtime=True,
        extra=edge.aten.minimum.default,
    ),
    "custom, shared": Write(
        lambda x, rows, new: CUSTOM.shift(x), extra=edge.in_place_tests.shift.default
    ),
    "custom, in place": Write(
        lambda x, rows, new: CUSTOM.shift(x),
        extra=edge.in_place_tests.shift.default,
        override=edge.in_place_tests.shift_.default,
    ),
    "custom, functionalised": Write(_updated, _updated),
    "custom, several results": Write(_both_updated, _both_updated),
}
BASES = ("input", "buffer", "computed")
PROGRAMS = [(base, write) for write in WRITES for base in BASES]

# Each reads rows 0 and 1 or one of them, through copies that may become aliases.
READS: Dict[str, Callable[[Tensor], List[Tensor]]] = {
    "view": lambda y: [torch.view_copy(y, [2, 12])],
    "slice": lambda y: [torch.slice_copy(y, 0, 1, 3)],
    "select": lambda y: [torch.select_copy(y, 0, 1)],
    "chunk": lambda y: list(torch.split_copy(y, 2)),
    "slice of view": lambda y: [
        torch.slice_copy(torch.view_copy(y, [8, 3]), 0, 1, 4),
    ],
    "view of slice": lambda y: [
        torch.view_copy(torch.slice_copy(y, 0, 1, 3), [3, 4]),
    ],
}
# What a write does to reads of the other kinds follows from these.
FEW_READS = ("view", "slice", "slice of view")
WHENS = ("before", "after", "both", "of the result", "is written")


def reads_of(write: str) -> Iterable[str]:
    """All kinds for the write that programs have most, fewer for the others."""
    return READS if write == "index_put" else FEW_READS


class Cell(nn.Module):
    """Reads parts of a tensor and writes it.

    The parts are taken before the write and read before it, after it, or both; or
    they are parts of what was written; or it is a part that is written.
    """

    def __init__(self, base: str, write: Write, read: str, when: str) -> None:
        super().__init__()
        self.base, self.write, self.when = base, write, when
        self.read = READS[read]
        self.register_buffer("state", random_tensor())

    def forward(self, x: Tensor, rows: Tensor, new: Tensor) -> List[Tensor]:
        if self.base == "buffer":
            y = self.state
        else:
            y = x if self.base == "input" else x.neg()
        parts = [] if self.when == "of the result" else self.read(y)
        results = []
        if self.when in ("before", "both"):
            results += [part.neg() for part in parts]
        if self.when == "is written":
            written = self.write.run(parts[0], rows, new)
        elif self.base == "computed" or self.write.mutate is None:
            written = self.write.run(y, rows, new)
        else:
            written = self.write.mutate(y, rows, new)
        if self.when == "of the result":
            results += [part.neg() for part in self.read(written)]
        if self.when in ("after", "both"):
            results += [part.neg() for part in parts]
        if self.when == "is written":
            results += [part.neg() for part in parts[1:]] + [y.neg()]
            if self.base == "buffer":
                y.copy_(y.sin())
        elif self.base != "computed" and written is not y:
            y.copy_(written)
        return [*results, written.neg()]


class Cells(nn.Module):
    """One cell for each read and each time of reading, in one program."""

    def __init__(self, base: str, write: str) -> None:
        super().__init__()
        self.cells = nn.ModuleDict(
            {
                f"{read}, {when}": Cell(base, WRITES[write], read, when)
                for read, when in product(reads_of(write), WHENS)
            }
        )

    def forward(self, rows: Tensor, new: Tensor, *xs: Tensor) -> List[List[Tensor]]:
        return [cell(x, rows, new) for cell, x in zip(self.cells.values(), xs)]


def random_tensor() -> Tensor:
    return torch.randn(4, 6)


def lower(module: nn.Module, inputs: Any, write: Write) -> ExecutorchProgramManager:
    exported = torch.export.export(copy.deepcopy(module), inputs)
    program = to_edge(exported)
    if write.override is not None:
        overrides = {write.extra: write.override}
        reinplace_pass(program.exported_program(), inplace_overrides=overrides)
    return program.to_executorch(
        all_safe_aliases(
            run_reinplace_pass=write.reinplace,
            reinplace_extra_ops=frozenset(
                {write.extra} if write.extra and not write.override else ()
            ),
            passes=[InitializedMutableBufferPass(["state"])],
        )
    )


@cache
def lowered(base: str, write: str) -> Tuple[nn.Module, Any, ExecutorchProgramManager]:
    torch.manual_seed(0)
    module = Cells(base, write)
    xs = [random_tensor() for _ in module.cells]
    inputs = (torch.tensor([0, 1]), torch.tensor(0.5), *xs)
    return module, inputs, lower(module, inputs, WRITES[write])


def mutated_inputs(manager: ExecutorchProgramManager, args: Any) -> List[Tensor]:
    """Those of `args` that the program writes; it returns them before its results."""
    signature = manager.exported_program().graph_signature
    by_name = dict(zip(signature.user_inputs, args))
    return [
        by_name[spec.target]
        for spec in signature.output_specs
        if spec.kind is OutputKind.USER_INPUT_MUTATION
    ]


def assert_runs_as_eager(
    module: nn.Module, inputs: Any, manager: ExecutorchProgramManager, in_runtime: bool
) -> None:
    eager = copy.deepcopy(module)
    programs: List[Callable[..., List[Tensor]]] = [
        PlannedProgram(manager.exported_program())
    ]
    if in_runtime:
        programs.append(LoadedProgram(manager))
    for round_ in range(3):
        args = [shifted(arg, round_) for arg in inputs]
        results = [program(*copy.deepcopy(args)) for program in programs]
        outputs = tree_leaves(eager(*args))
        want = [*mutated_inputs(manager, args), *outputs]
        for got in results:
            assert len(got) == len(want)
            for g, w in zip(got, want):
                torch.testing.assert_close(g, w)


@pytest.mark.parametrize("base,write", PROGRAMS)
def test_runs_as_eager(base: str, write: str) -> None:
    module, inputs, manager = lowered(base, write)
    assert_runs_as_eager(module, inputs, manager, WRITES[write].in_runtime)


def verdicts(manager: ExecutorchProgramManager) -> Dict[str, List[str]]:
    """For each cell, what became of each of its reads, by reason where it is known."""
    reasons = {decision.node: decision.reason.name for decision in decisions(manager)}
    found: Dict[str, List[str]] = {}
    for node in manager.exported_program().graph.nodes:
        reason = reasons.get(node.name)
        if reason is not None:
            cell = list(node.meta["nn_module_stack"].values())[-1][0]
            found.setdefault(cell.removeprefix("cells."), []).append(reason)
    return found


def expected(base: str, write: Write, read: str, when: str) -> List[str]:
    """A chain ends where it conflicts; what comes before stays free."""
    in_place = write.in_place
    if base == "input" and when != "is written":
        # Only what PyTorch itself writes in place is written to an input at once.
        in_place = in_place and write.mutate is not None
    count = len(READS[read](torch.zeros(4, 6))) + (" of " in read)
    if not in_place or when in ("before", "of the result"):
        return ["SAFE"] * count
    reason = "WRITTEN" if when == "is written" else "CONFLICTING_WRITE"
    if read == "chunk":
        return [reason, "SPLIT_STAYS" if reason == "WRITTEN" else reason]
    return ["SAFE"] * (count - 1) + [reason]


@pytest.mark.parametrize("base,write", PROGRAMS)
def test_verdicts(base: str, write: str) -> None:
    _, _, manager = lowered(base, write)
    assert verdicts(manager) == {
        f"{read}, {when}": expected(base, WRITES[write], read, when)
        for read, when in product(reads_of(write), WHENS)
    }


class Rotated(nn.Module):
    """Each of three tensors gets what the next one held, in another shape."""

    def __init__(self, stateful: bool) -> None:
        super().__init__()
        self.stateful = stateful
        for name, shape in (("a", (4, 6)), ("b", (1, 4, 6)), ("c", (5, 24))):
            self.register_buffer(f"state_{name}", torch.randn(shape))

    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> List[Tensor]:
        if self.stateful:
            sums = (self.state_a + a, self.state_b + b, self.state_c + c)
            a, b, c = self.state_a, self.state_b, self.state_c
        else:
            sums = (a + 1.0, b + 1.0, c + 1.0)
        old_a = torch.view_copy(a, [1, 24])
        old_b = torch.select_copy(b, 0, 0)
        old_c = torch.view_copy(torch.slice_copy(c, 0, 3, 4), [1, 4, 6])
        a.copy_(old_b)
        b.copy_(old_c)
        c.copy_(torch.cat([c[1:], old_a]))
        return [total.neg() for total in sums]


@pytest.mark.parametrize("stateful", [True, False])
def test_write_backs_of_parts(stateful: bool) -> None:
    """Write-backs land one after the other, and what they read is part of another."""
    torch.manual_seed(0)
    inputs = (torch.randn(4, 6), torch.randn(1, 4, 6), torch.randn(5, 24))
    module = Rotated(stateful)
    manager = lower(module, inputs, WRITES["copy_"])
    assert {name for found in verdicts(manager).values() for name in found} == {"SAFE"}
    assert_runs_as_eager(module, inputs, manager, in_runtime=True)


class Exchanged(nn.Module):
    """Two states exchange their values: one is overwritten before it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state_a", torch.randn(4, 6))
        self.register_buffer("state_b", torch.randn(1, 4, 6))

    def forward(self, x: Tensor) -> Tuple[Tensor, Tensor]:
        old_a = torch.view_copy(self.state_a, [1, 4, 6])
        old_b = torch.select_copy(self.state_b, 0, 0)
        last = torch.slice_copy(self.state_a, 0, 2, 4)
        self.state_a.copy_(old_b)
        self.state_b.copy_(old_a)
        return last, self.state_a + x


def test_exchanged_buffers() -> None:
    torch.manual_seed(0)
    module, inputs = Exchanged(), (torch.randn(4, 6),)
    manager = lower(module, inputs, WRITES["copy_"])
    found = verdicts(manager)
    assert sorted(sum(found.values(), [])) == ["CONFLICTING_WRITE", "OUTPUT", "SAFE"]
    assert_runs_as_eager(module, inputs, manager, in_runtime=True)
