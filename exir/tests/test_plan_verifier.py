# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

import copy
from collections import Counter
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import plan_mutants
import pytest
import torch
from alias_testing import all_safe_aliases, Fn, lower
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import (
    ExecutorchProgramManager,
    to_edge,
    to_edge_transform_and_lower,
)
from executorch.exir.memory_planning import greedy, MemoryPlanningAlgorithmSuite, naive
from executorch.exir.passes.memory_planning_pass import MemoryPlanningPass
from executorch.exir.tensor import TensorSpec
from executorch_slice.demo_models import GRU, LlamaBlock, ShuffleNet
from executorch_slice.exir.verification.arena_contents import (
    Arena,
    Fork,
    holds,
    Memory,
    Piece,
    Write,
)
from executorch_slice.exir.verification.plan_verifier import (
    PlanVerificationError,
    verify_plan,
)
from functorch.experimental.control_flow import map as map_rows
from torch import nn, Tensor
from torch._higher_order_ops.scan import scan
from torch.export import Dim, ExportedProgram
from torch.fx import Node
from zoo import ZOO

A, B, C = Write("a"), Write("b"), Write("c")


def arange(*shape: int) -> Tensor:
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


class TestArena:
    def read(self, arena: Arena, start: int, end: int) -> List[Piece]:
        return list(arena.read(start, end))

    def test_empty(self) -> None:
        assert self.read(Arena(), 4, 8) == [Piece(4, 8, None, 0)]
        assert self.read(Arena(), 4, 4) == []

    def test_nothing_is_read_inside_a_piece(self) -> None:
        """As an empty tensor does, wherever it is placed."""
        arena = Arena()
        arena.write(0, 16, A)
        for at in range(20):
            assert self.read(arena, at, at) == []

    def test_gaps_hold_nothing(self) -> None:
        arena = Arena()
        arena.write(4, 8, A)
        arena.write(12, 16, B)
        assert self.read(arena, 0, 20) == [
            Piece(0, 4, None, 0),
            Piece(4, 8, A, 0),
            Piece(8, 12, None, 0),
            Piece(12, 16, B, 0),
            Piece(16, 20, None, 0),
        ]

    def test_read_is_cut(self) -> None:
        arena = Arena()
        arena.write(0, 16, A)
        assert self.read(arena, 4, 12) == [Piece(4, 12, A, 4)]

    def test_write_in_the_middle(self) -> None:
        arena = Arena()
        arena.write(0, 16, A)
        arena.write(4, 8, B)
        assert self.read(arena, 0, 16) == [
            Piece(0, 4, A, 0),
            Piece(4, 8, B, 0),
            Piece(8, 16, A, 8),
        ]

    def test_write_over_several(self) -> None:
        arena = Arena()
        for at in (0, 8, 16, 24):
            arena.write(at, at + 8, A, origin=at)
        arena.write(4, 28, B)
        assert self.read(arena, 0, 32) == [
            Piece(0, 4, A, 0),
            Piece(4, 28, B, 0),
            Piece(28, 32, A, 28),
        ]

    def test_write_over_the_same_bytes(self) -> None:
        arena = Arena()
        arena.write(4, 8, A)
        arena.write(4, 8, B, origin=2)
        assert self.read(arena, 4, 8) == [Piece(4, 8, B, 2)]

    def test_copy_is_apart(self) -> None:
        arena = Arena()
        arena.write(0, 8, A)
        arena.copy().write(0, 8, B)
        assert self.read(arena, 0, 8) == [Piece(0, 8, A, 0)]

    def test_agrees_with_an_array_of_bytes(self) -> None:
        generator = torch.Generator().manual_seed(0)
        arena = Arena()
        want: List[Tuple[Optional[Write], int]] = [(None, 0)] * 64
        for number in range(300):
            low, high = torch.randint(65, (2,), generator=generator).sort()[0].tolist()
            if low == high:
                continue
            write = Write(str(number))
            arena.write(low, high, write)
            want[low:high] = [(write, i) for i in range(high - low)]
            got = [
                (p.content, p.origin + i if p.content is not None else 0)
                for p in arena.read(0, 64)
                for i in range(p.end - p.start)
            ]
            assert got == want


class TestJoin:
    def join(self, *sides: Callable[[Memory], object]) -> Tuple[Memory, object]:
        """A memory whose first 16 bytes hold A, after a cond with these branches."""
        memory, cond = Memory(), object()
        memory.write(1, 0, 16, A)
        copies = [memory.copy() for _ in sides]
        for side, copied in zip(sides, copies):
            side(copied)
        memory.join(cond, copies)
        return memory, cond

    def content(self, memory: Memory) -> List[Tuple[int, int, Any]]:
        return [(p.start, p.end, p.content) for p in memory.arena(1).read(0, 16)]

    def test_untouched(self) -> None:
        memory, _ = self.join(lambda m: None, lambda m: None)
        assert self.content(memory) == [(0, 16, A)]

    def test_one_side_writes(self) -> None:
        memory, cond = self.join(lambda m: m.write(1, 4, 8, B), lambda m: None)
        (_, fork, rest) = memory.arena(1).read(0, 16)
        assert (fork.start, fork.end) == (4, 8)
        assert fork.content.cond is cond
        assert fork.content.sides == ((B, 0), (A, 4))
        assert rest == Piece(8, 16, A, 8)

    def test_sides_write_across_each_other(self) -> None:
        memory, _ = self.join(
            lambda m: m.write(1, 0, 8, B), lambda m: m.write(1, 4, 12, C)
        )
        forks = [
            (p.start, p.end, p.content.sides)
            for p in memory.arena(1).read(0, 16)
            if isinstance(p.content, Fork)
        ]
        assert forks == [
            (0, 4, ((B, 0), (A, 0))),
            (4, 8, ((B, 4), (C, 0))),
            (8, 12, ((A, 8), (C, 4))),
        ]

    def test_both_leave_the_same(self) -> None:
        memory, _ = self.join(
            lambda m: m.write(1, 0, 8, B), lambda m: m.write(1, 0, 8, B)
        )
        assert self.content(memory) == [(0, 8, B), (8, 16, A)]

    def test_new_arena_in_a_branch(self) -> None:
        memory, cond = self.join(lambda m: m.write(2, 0, 4, B), lambda m: None)
        (piece,) = memory.arena(2).read(0, 4)
        assert piece.content.sides == ((B, 0), (None, 0))

    def test_an_outer_join_sees_what_an_inner_one_wrote(self) -> None:
        inner = object()

        def nested(memory: Memory) -> None:
            copies = [memory.copy(), memory.copy()]
            copies[0].write(1, 0, 4, B)
            memory.join(inner, copies)

        memory, outer = self.join(nested, lambda m: m.write(1, 0, 4, C))
        (piece,) = memory.arena(1).read(0, 4)
        assert holds(piece.content, 0, B, 0, {outer: 0, inner: 0}) is None
        assert holds(piece.content, 0, A, 0, {outer: 0, inner: 1}) is None
        assert holds(piece.content, 0, C, 0, {outer: 1}) is None
        assert holds(piece.content, 0, B, 0, {outer: 0}) == "what a wrote"
        assert holds(piece.content, 0, B, 0, {}) is not None


class TestHolds:
    def test_write(self) -> None:
        assert holds(A, 4, A, 4, {}) is None
        assert holds(A, 8, A, 4, {}) == "byte 8 of it instead of byte 4"
        assert holds(B, 4, A, 4, {}) == "what b wrote"
        assert holds(Write("a"), 4, A, 4, {}) == "what else a wrote"
        assert holds(None, 0, A, 0, {}) == "nothing"

    def test_fork(self) -> None:
        fork = Fork("cond", ((A, 8), (B, 0)))
        assert holds(fork, 0, A, 8, {"cond": 0}) is None
        assert holds(fork, 4, A, 12, {"cond": 0}) is None  # a piece cut off in front
        assert holds(fork, 4, B, 4, {"cond": 1}) is None
        assert holds(fork, 0, A, 8, {}) == "what b wrote"
        assert holds(fork, 4, A, 8, {"cond": 0}) is not None

    def test_fork_of_forks(self) -> None:
        inner = Fork("inner", ((A, 4), (B, 0)))
        outer = Fork("outer", ((inner, 2), (A, 6)))
        assert holds(outer, 0, A, 6, {"inner": 0}) is None
        assert holds(outer, 1, A, 7, {"inner": 0}) is None
        assert holds(outer, 0, A, 6, {"outer": 1}) is None
        assert holds(outer, 0, A, 6, {}) == "what b wrote"
        assert holds(outer, 0, B, 2, {"outer": 0, "inner": 1}) is None


class Ring(nn.Module):
    """Reads parts of its state before, between and after it shifts a frame in."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frames", arange(4, 6))

    def forward(self, x: Tensor) -> Tuple[Tensor, ...]:
        y = x * 2
        state = self.frames[1:3] + x[2:]
        window = torch.cat([self.frames[1:], y[:1]]) + 1
        newest = window[-1:] + self.frames[:1]
        self.frames.copy_(window)
        return newest + self.frames[2], y[1:3] + 1, x[-1] + y.chunk(2)[1][0], state


class Reads(nn.Module):
    """A second method with the state of Ring."""

    def __init__(self, ring: Ring) -> None:
        super().__init__()
        self.frames = ring.frames

    def forward(self, x: Tensor) -> Tensor:
        return self.frames[1:3] + x


class TwoLinears(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 4), nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.erf(self.a(x)[1:3])
        return self.b(y) + torch.cumsum(x[:2], 0)


def pieces(x: Tensor) -> Tensor:
    base = x * 2
    other = x + 3
    return base[1:3] - other[:2] / base.view(24)[0]


def conds(p: Tensor, x: Tensor) -> Tuple[Tensor, ...]:
    y = x * 2
    first = torch.cond(
        p, lambda v: v[1:] + (v * 3)[1:], lambda v: v[:2] * 2 + v[1:], (y[1:],)
    )
    flat, row = torch.cond(
        p,
        lambda v: (v.reshape(-1) * 2, v[1] + 1),
        lambda v: (torch.sin(v).reshape(-1) + 5, v[0] - 1),
        (x + 1,),
    )
    return first[:1] + x[3:], flat[3:9] * 1.0, row[2:] + 1, first + 2


def nested(p: Tensor, x: Tensor) -> Tensor:
    def true(v: Tensor) -> Tensor:
        w = torch.cond(v.sum() > 0, lambda u: u * 2, lambda u: u * 3 + 1, (v + 1,))
        return w + torch.cond(v.sum() > 9, lambda u: u - 2, lambda u: u - 3, (v,))

    def false(v: Tensor) -> Tensor:
        return torch.cond(v.sum() > 0, lambda u: u + 7, lambda u: u - 7, (v,))

    return torch.cond(p, true, false, (x,)) * 2 + x


def mapped(x: Tensor, y: Tensor) -> Tensor:
    rows = map_rows(lambda row, y: (row + y)[1:3] * 2, x * 3, y)
    return rows[1:] + rows[:1]


def scanned(x: Tensor, y: Tensor) -> Tuple[Tensor, Tensor]:
    def step(carry: Tensor, row: Tensor) -> Tuple[Tensor, Tensor]:
        total = carry + row[1:]
        return total, total * 2

    last, all_ = scan(step, y * 2, x * 3)
    return last + 1, all_ * 1.0


def updated(x: Tensor, rows: Tensor, new: Tensor) -> Tuple[Tensor, ...]:
    base = x * 2
    view = base.view(2, 12)[1] + 1
    written = torch.ops.aten.index_put(base, [rows], new)
    other = (x * 3 + 1) * 2
    return other, written[1:3] * 1.0, view


X = arange(4, 6)
ROWS, NEW = torch.tensor([1, 2]), torch.full((2, 6), -5.0)
P = torch.tensor(True)

PROGRAMS: Dict[str, Tuple[nn.Module, Tuple[Any, ...]]] = {
    "plain": (Fn(lambda x: ((x * 2 + 1) * x).sum(1)), (X,)),
    "aliases": (Fn(lambda x: sum((x * 2).chunk(2)) + x[1:3] + (x + 1)[2]), (X,)),
    "pieces": (Fn(pieces), (X,)),
    "chains": (Fn(lambda x: (x * 2).view(24)[4:16].view(3, 4)[1:][-1] + 1), (X,)),
    "nothing left": (Fn(lambda x: ((x * 2)[99:] + 1, x[1:] + 1)), (X,)),
    "copied pieces": (
        Fn(lambda x: sum(y.reshape(-1)[2:6] for y in (x * 2).chunk(2, 1))),
        (X,),
    ),
    "several results": (Fn(lambda x: torch.topk(x * 2, 3)[0] + 1), (X,)),
    "unused input": (Fn(lambda x, y, z: x[1:] * 2 + z[1:]), (X, X, X)),
    "input is output": (Fn(lambda x: (x, x[1:3] + 1)), (X,)),
    "constant": (Fn(lambda x: x + torch.ones(6).view(1, 6)), (X,)),
    "mutable buffer": (Ring(), (X,)),
    "cond": (Fn(conds), (P, X)),
    "nested cond": (Fn(nested), (P, X)),
    "map": (Fn(mapped), (arange(3, 4), arange(4))),
    "scan": (Fn(scanned), (arange(3, 4), arange(3))),
    "update": (Fn(updated), (X, ROWS, NEW)),
}

PLANNERS: Dict[str, Dict[str, Any]] = {
    "greedy": {},
    "naive": dict(memory_planning_algo=MemoryPlanningAlgorithmSuite([naive])),
    "both": dict(memory_planning_algo=MemoryPlanningAlgorithmSuite([naive, greedy])),
    "i/o unplanned": dict(alloc_graph_input=False, alloc_graph_output=False),
    "shared buffers": dict(share_mutable_buffers=True),
    "overlap": dict(allow_lifetime_and_storage_overlap=True),
    "alignment 1": dict(alignment=1),
}


@lru_cache(maxsize=None)
def lowered_once(name: str) -> ExecutorchProgramManager:
    return lower(*PROGRAMS[name])


def verify(manager: ExecutorchProgramManager) -> None:
    for method in manager.methods:
        verify_plan(manager.exported_program(method))


@pytest.mark.parametrize("name", PROGRAMS)
def test_accepts_program(name: str) -> None:
    verify(lowered_once(name))


@pytest.mark.parametrize("name", ["chains", "mutable buffer", "cond"])
@pytest.mark.parametrize("planner", PLANNERS)
def test_accepts_planner(planner: str, name: str) -> None:
    planning = MemoryPlanningPass(**PLANNERS[planner])
    config = all_safe_aliases(memory_planning_pass=planning)
    verify(lower(*PROGRAMS[name], config))


def test_accepts_update_in_place() -> None:
    config = all_safe_aliases(run_reinplace_pass=True)
    manager = lower(*PROGRAMS["update"], config)
    graph = manager.exported_program().graph
    assert any("index_put_" in str(node.target) for node in graph.nodes)
    verify(manager)


def test_accepts_buffers_shared_by_methods() -> None:
    ring = Ring()
    methods = {"forward": ring, "encode": Reads(ring)}
    inputs = {"forward": X, "encode": X[:2]}
    programs = {
        name: torch.export.export(module, (inputs[name],))
        for name, module in methods.items()
    }
    planning = MemoryPlanningPass(share_mutable_buffers=True)
    config = all_safe_aliases(memory_planning_pass=planning)
    manager = to_edge(programs).to_executorch(config)
    assert len(manager.methods) == 2
    verify(manager)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x * 2)[1:3] + 1,
        lambda x: (x * 2)[1:].reshape(-1) + 1,
        lambda x: (x * 2)[: x.shape[0] - 1] + (x + 1)[-1],
    ],
)
@pytest.mark.parametrize("upper", [16, None])
def test_accepts_dynamic_shapes(fn: Callable[..., Any], upper: Optional[int]) -> None:
    dim = Dim("n", min=3, max=upper) if upper else Dim.DYNAMIC
    try:
        manager = lower(Fn(fn), (arange(5, 6),), dynamic_shapes=(({0: dim},),))
    except Exception as error:  # upstream: not all programs may be unbounded
        assert upper is None and not isinstance(error, PlanVerificationError)
        pytest.skip(str(error))
    verify(manager)


def test_accepts_delegates() -> None:
    exported = torch.export.export(TwoLinears(), (X,))
    edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
    manager = edge.to_executorch(all_safe_aliases())
    (plan,) = manager.executorch_program.execution_plan
    assert plan.delegates
    verify(manager)


def rejects(program: ExportedProgram, *parts: str) -> None:
    with pytest.raises(PlanVerificationError) as error:
        verify_plan(program)
    for part in parts:
        assert part in str(error.value), str(error.value)


def bytes_of(node: Node, arena: bool = True) -> str:
    spec = node.meta["spec"]
    where = f"bytes {spec.mem_offset} to {spec.mem_offset + spec.nbytes()}"
    return f"{where} of arena {spec.mem_id}" if arena else where


class Lowered:
    """A copy of a program, to break; its specs are those of the original."""

    def __init__(self, program: ExportedProgram) -> None:
        self.program = copy.deepcopy(program)
        self.module = self.program.graph_module
        sizes = self.module.meta["non_const_buffer_sizes"]
        self.module.meta["non_const_buffer_sizes"] = list(sizes)

    def __getitem__(self, name: str) -> Node:
        (node,) = [n for n in self.module.graph.nodes if n.name == name]
        return node

    def spec(self, name: str) -> Any:
        return self[name].meta["spec"]

    def rejects(self, *parts: str) -> None:
        rejects(self.program, *parts)


@pytest.fixture
def plan() -> Iterator[Lowered]:
    with broken("pieces") as found:
        verify_plan(found.program)
        yield found


BASE, OTHER = "aten_mul_tensor", "aten_add_tensor"
PART, QUOTIENT, READER = "aten_slice_copy_tensor", "aten_div_tensor", "aten_sub_tensor"


@contextmanager
def broken(name: str) -> Iterator[Lowered]:
    """One of the PROGRAMS, whose specs are restored when the context ends."""
    program = lowered_once(name).exported_program()
    nothing = plan_mutants.Mutant("none", "", lambda: None)
    with plan_mutants.applied(nothing, program):
        yield Lowered(program)


@pytest.mark.parametrize("rows", range(1, 9))
def test_accepts_empty_tensors(rows: int) -> None:
    """The planner may place them inside others, which are alive or not."""

    def fn(x: Tensor) -> Tuple[Tensor, ...]:
        total = x.sin().cos().sum(0)
        twice = total * 2
        return twice.exp(), total, twice[6:], twice[rows:][:0].neg(), x[rows:] + 1

    for config in (None, all_safe_aliases()):
        lower(Fn(fn), (torch.ones(rows + 1, 6),), config)


class TestRejects:
    def test_past_the_arena(self, plan: Lowered) -> None:
        size = plan.module.meta["non_const_buffer_sizes"][1]
        plan.spec(BASE).mem_offset = size - 80
        plan.rejects(
            f" has bytes {size - 80} to {size + 16} of arena 1, "
            f"which has {size} bytes"
        )

    def test_arena_that_is_not_there(self, plan: Lowered) -> None:
        plan.spec(BASE).mem_id = 7
        plan.rejects("of arena 7, which has 0 bytes")

    def test_overwritten(self, plan: Lowered) -> None:
        plan.spec(OTHER).mem_offset = plan.spec(BASE).mem_offset
        plan.rejects(f"as what {BASE} wrote", f"hold what {OTHER} wrote", "of arena 1")

    def test_overwritten_in_part(self, plan: Lowered) -> None:
        sizes = plan.module.meta["non_const_buffer_sizes"]
        at = plan.spec(BASE).mem_offset = sizes[1]
        plan.spec(OTHER).mem_offset = at + 64
        sizes[1] += 256
        plan.rejects(
            f"{READER} reads bytes {at + 64} to {at + 72} of arena 1 as what {BASE} "
            f"wrote, but they hold what {OTHER} wrote"
        )

    def test_written_while_it_is_read(self, plan: Lowered) -> None:
        quotient = plan.spec(QUOTIENT)
        quotient.mem_offset = plan.spec(OTHER).mem_offset
        reads = next(iter(plan[QUOTIENT].all_input_nodes)).name
        plan.rejects(
            f"{QUOTIENT} writes {bytes_of(plan[QUOTIENT])}, while it reads {reads}"
        )

    def test_wrong_byte_of_the_right_tensor(self, plan: Lowered) -> None:
        plan.spec(PART).byte_offset += 4
        plan.rejects(
            f"{READER} reads {bytes_of(plan[PART])} as what {BASE} wrote, but they "
            "hold byte 28 of it instead of byte 24"
        )

    def test_alias_past_its_root(self, plan: Lowered) -> None:
        plan.spec(PART).byte_offset = 72
        plan.rejects(f"{READER} reads bytes", f"as what {BASE} wrote", "of arena 1")

    def test_alias_larger_than_its_root(self, plan: Lowered) -> None:
        (view,) = [n for n in plan.module.graph.nodes if "view_copy" in n.name]
        large = TensorSpec.from_tensor(torch.empty(48))
        large.mem_id, large.mem_offset = 1, plan.spec(BASE).mem_offset
        plan.module.meta["non_const_buffer_sizes"][1] += 256
        view.meta["spec"] = large
        plan.rejects(f"{view.name} stands for bytes 0 to 192 of {BASE}", "has 96 bytes")

    def test_alias_of_another_root(self, plan: Lowered) -> None:
        plan.spec(PART)._base = plan.spec(OTHER)
        plan.rejects(
            f"{READER} reads {bytes_of(plan[PART])} as what {BASE} wrote, but they "
            f"hold what {OTHER} wrote"
        )

    def test_alias_of_bytes_that_nobody_wrote(self, plan: Lowered) -> None:
        free = TensorSpec.from_tensor(torch.empty(4, 6))
        free.mem_id = 1
        free.mem_offset = plan.module.meta["non_const_buffer_sizes"][1]
        plan.module.meta["non_const_buffer_sizes"][1] += 96
        plan.spec(PART)._base = free
        plan.rejects(f"as what {BASE} wrote, but they hold nothing")

    def test_alias_whose_op_means_another_shape(self, plan: Lowered) -> None:
        node = plan[PART]
        node.args = (node.args[0], 0, 1, 4)
        plan.rejects(f"{PART} stands for a tensor of shape [2, 6]", "has [3, 6]")

    def test_input_over_input(self) -> None:
        with broken("unused input") as plan:
            for other in ("args_0", "args_2"):
                plan.spec("args_1").mem_offset = plan.spec(other).mem_offset
                plan.rejects("as what args_", "hold what args_", "of arena 1")

    def test_results_of_a_kernel_over_each_other(self) -> None:
        with broken("several results") as plan:
            topk = "aten_topk_default"
            values, indices = plan.spec(topk)
            indices.mem_offset = values.mem_offset
            plan.module.meta["non_const_buffer_sizes"][1] += 256
            plan.rejects(
                f"as what {topk} wrote, but they hold what else {topk} wrote",
                "of arena 1",
            )

    def test_state_lost_before_the_next_run(self) -> None:
        with broken("mutable buffer") as plan:
            output = plan.module.graph.output_node()
            constant, late = plan["_lifted_tensor_constant1"], plan["aten_add_tensor_3"]
            for node in (late.kwargs["out"], late):
                output.prepend(node)
            late.args = (constant, constant)
            late.meta["spec"].mem_offset = plan.spec("b_frames").mem_offset
            output.args = ((late,),)
            plan.rejects(
                "the next run, through b_frames, reads bytes",
                f"of arena 1 as what copy_ wrote, but they hold what {late.name} wrote",
            )

    def test_update_of_what_it_reads(self) -> None:
        config = all_safe_aliases(run_reinplace_pass=True)
        plan = Lowered(lower(*PROGRAMS["update"], config).exported_program())
        (update,) = [n for n in plan.module.graph.nodes if "index_put_" in n.name]
        update.args = (update.args[0], update.args[1], plan["aten_view_copy_default"])
        plan.rejects(f"{update.name} writes", "of arena 1", "while it reads")

    def test_map_over_rows_that_its_body_overwrites(self) -> None:
        with broken("map") as plan:
            plan.spec("aten_mul_tensor").mem_offset = 0
            plan.rejects(
                "map_impl reads bytes",
                "of arena 1 as what aten_mul_tensor wrote",
                "hold what submodule_0.",
            )

    def test_branch_that_overwrites_what_is_read_later(self) -> None:
        """As stock does: the second cond's branches in the first one's result."""
        with broken("cond") as plan:
            first, second = plan.module.graph.find_nodes(
                op="call_function", target=torch.ops.higher_order.cond
            )
            (slot,) = first.meta["spec"]
            name = second.args[2].target  # the branch that is not taken first
            branch = getattr(plan.module, name)
            (sine,) = branch.graph.find_nodes(
                op="call_function", target=torch.ops.aten.sin.out
            )
            sine.meta["spec"].mem_offset = slot.mem_offset
            plan.module.meta["non_const_buffer_sizes"][1] += 256
            plan.rejects("of arena 1 as what", f"hold what {name}.{sine.name} wrote")


def from_zoo(name: str) -> Tuple[nn.Module, List[Any], Dict[str, Any]]:
    case = ZOO[name]()
    return case.module, [case.inputs], {}


MUTATED: Dict[str, Callable[[], Tuple[nn.Module, List[Any], Dict[str, Any]]]] = {
    "llama_block": lambda: (
        LlamaBlock(64, 32, heads=2, tokens=16),
        [(torch.randint(64, (1, 16)),)],
        {},
    ),
    "shufflenet": lambda: (ShuffleNet(), [(torch.randn(1, 3, 16, 16),)], {}),
    "gru": lambda: (GRU(10, 16, 4), [(torch.randn(1, 6, 10),)], {}),
    **{
        name: partial(from_zoo, name)
        for name in ("dlrm_tabular", "ctc_beam_frame_pick", "robot_policy_gaussian")
    },
    "stateful": lambda: (Ring(), [(torch.randn(4, 6),)], {}),
    "cond": lambda: (
        Fn(conds),
        [(torch.tensor(p), torch.randn(4, 6)) for p in (True, False)],
        {},
    ),
    "update in place": lambda: (
        Fn(updated),
        [(torch.randn(4, 6), ROWS, torch.randn(2, 6))],
        dict(run_reinplace_pass=True),
    ),
}


def mutated(
    judge: plan_mutants.Judge, program: ExportedProgram
) -> Iterator[Tuple[plan_mutants.Mutant, Optional[str], Optional[str]]]:
    """Each mutant, which read it changes if any, and why it is rejected if it is."""
    for mutant in plan_mutants.candidates(program, seed=0, limit=5):
        with plan_mutants.applied(mutant, program):
            changed, error = judge.changed_read(), None
            try:
                verify_plan(program)
            except PlanVerificationError as rejected:
                error = str(rejected)
        yield mutant, changed, error


@pytest.mark.parametrize("name", MUTATED)
def test_rejects_mutants(name: str) -> None:
    torch.manual_seed(0)
    module, runs, config = MUTATED[name]()
    module.eval().requires_grad_(False)
    manager = lower(module, runs[0], all_safe_aliases(**config))
    program = manager.exported_program()
    judge = plan_mutants.Judge(program, runs)
    made: Counter = Counter()
    caught: Counter = Counter()
    accepted = []
    for mutant, changed, error in mutated(judge, program):
        if changed is not None:
            made[mutant.kind] += 1
            caught[mutant.kind] += error is not None
            if error is None:
                accepted.append(f"{mutant}: {changed}")
    for kind, number in made.items():
        print(f"{name}: {kind}: {caught[kind]} of {number} caught")
    assert judge.changed_read() is None
    verify_plan(program)  # all edits were taken back
    assert len(made) >= 6
    assert not accepted, "\n".join(accepted)
