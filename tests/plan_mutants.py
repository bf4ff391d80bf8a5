# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Breaks good memory plans in ways that change what a reader sees.

`Judge` runs a planned program on arenas, and compares each byte that is read with what
the good plan gave that reader. A mutant counts only where one differs, so an edit that
no reader can notice (a tensor shifted into bytes that are free, a shift between equal
values) is none. The judge knows nothing of the plan verifier: it compares values.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Optional

from executorch.exir.memory_planning import greedy
from executorch.exir.tensor import TensorSpec
from executorch_slice.exir.memory import is_alias
from executorch_slice.exir.memory_planning import _place_branch_results
from planned_program import PlannedProgram, written_arguments
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

Inputs = tuple[Tensor, ...]
ALIGNMENT = 16  # of the planner


class Judge:
    """Says whether readers of a program see the same bytes as when it was made.

    Args:
        program: with a good plan.
        runs: inputs of each run.
    """

    def __init__(self, program: ExportedProgram, runs: Sequence[Inputs]) -> None:
        self.program = program
        self.runs = runs
        self._good: dict[tuple[int, str], bytes] = {}
        for reader, read in self._reads():
            self._good[reader] = read

    def changed_read(self) -> Optional[str]:
        """The first reader that now sees other bytes; None if there is none."""
        try:
            for reader, read in self._reads():
                if self._good[reader] != read:
                    return reader[1]
        except Exception as error:  # past the arena, or a kernel given nonsense
            return f"{type(error).__name__}: {error}"
        return None

    def _reads(self) -> Iterator[tuple[tuple[int, str], bytes]]:
        for number, inputs in enumerate(self.runs):
            for reader, read in PlannedProgram(self.program).reads(*inputs):
                yield (number, reader), read


@dataclass
class Mutant:
    """An edit of a plan in place, which `applied` takes back."""

    kind: str
    what: str
    edit: Callable[[], object] = field(repr=False)


@contextmanager
def applied(mutant: Mutant, program: ExportedProgram) -> Iterator[None]:
    """The program with the edit of `mutant`, until the context ends."""
    meta = program.graph_module.meta
    sizes = list(meta["non_const_buffer_sizes"])
    specs = _specs(program.graph_module)
    plans = [(s, s.mem_id, s.mem_obj_id, s.mem_offset, s.lifetime) for s in specs]
    views = [s for s in _alias_specs(program.graph_module)]
    parts = [(view, view._base, view.byte_offset) for view in views]
    orders = [(m.graph, list(m.graph.nodes)) for m in _modules(program.graph_module)]
    mutant.edit()
    try:
        yield
    finally:
        meta["non_const_buffer_sizes"] = sizes
        for view, base, offset in parts:
            view._base, view.byte_offset = base, offset
        for spec, mem_id, mem_obj_id, mem_offset, lifetime in plans:
            spec.mem_id, spec.mem_obj_id = mem_id, mem_obj_id
            spec.mem_offset, spec.lifetime = mem_offset, lifetime
        for graph, nodes in orders:
            if list(graph.nodes) != nodes:
                for before, after in zip(nodes, nodes[1:]):
                    before.append(after)


def candidates(program: ExportedProgram, seed: int, limit: int) -> Iterator[Mutant]:
    """Edits of each kind, at most `limit` of a kind, in an order that `seed` fixes."""
    for kind, make in KINDS.items():
        rng = random.Random(f"{seed} {kind}")
        edits = list(make(program))
        rng.shuffle(edits)
        for what, edit in edits[:limit]:
            yield Mutant(kind, what, edit)


Edits = Iterator[tuple[str, Callable[[], object]]]


def _modules(module: GraphModule) -> list[GraphModule]:
    return [m for m in module.modules() if isinstance(m, GraphModule)]


def _owners(module: GraphModule) -> dict[TensorSpec, Node]:
    """The planned specs of one graph that are no part of another; who has each."""
    found: dict[TensorSpec, Node] = {}
    for node in module.graph.nodes:
        if not is_alias(node) and node.op != "output":
            for spec in tree_leaves(node.meta.get("spec")):
                if isinstance(spec, TensorSpec) and spec.mem_offset is not None:
                    found.setdefault(spec, node)
    return found


def _specs(module: GraphModule) -> list[TensorSpec]:
    return [spec for m in _modules(module) for spec in _owners(m)]


def _aliases(module: GraphModule) -> list[Node]:
    return [
        node
        for m in _modules(module)
        for node in m.graph.nodes
        if is_alias(node)
        and hasattr(node.meta["spec"], "byte_offset")
        and node.meta["spec"].mem_offset is not None
        and node.meta["spec"].nbytes()
    ]


def _alias_specs(module: GraphModule) -> list[Any]:
    return [node.meta["spec"] for node in _aliases(module)]


def _live_together(module: GraphModule) -> Iterator[tuple[TensorSpec, TensorSpec]]:
    for m in _modules(module):
        specs = [s for s in _owners(m) if s.lifetime[0] is not None and s.nbytes()]
        for one in specs:
            for other in specs:
                if (
                    one is not other
                    and one.mem_id == other.mem_id
                    and one.lifetime[0] <= other.lifetime[1]
                    and other.lifetime[0] <= one.lifetime[1]
                ):
                    yield one, other


def _move(spec: Any, offset: int) -> None:
    spec.mem_offset = offset


def _root_shifted(program: ExportedProgram) -> Edits:
    """A root whose end reaches into the start of a tensor that is live, or back."""
    sizes = program.graph_module.meta["non_const_buffer_sizes"]
    for one, other in _live_together(program.graph_module):
        low = other.mem_offset + other.nbytes() // 2 // ALIGNMENT * ALIGNMENT
        high = other.mem_offset - one.nbytes() // 2 // ALIGNMENT * ALIGNMENT
        for offset in {low, high} - {one.mem_offset, other.mem_offset}:
            if 0 <= offset <= sizes[one.mem_id] - one.nbytes():
                yield f"{one.mem_offset} to {offset}", partial(_move, one, offset)


def _same_bytes(program: ExportedProgram) -> Edits:
    """Two tensors that live at the same time, at the same offset."""
    sizes = program.graph_module.meta["non_const_buffer_sizes"]
    for one, other in _live_together(program.graph_module):
        if other.mem_offset + one.nbytes() <= sizes[one.mem_id]:
            yield f"{one.mem_offset} to {other.mem_offset}", partial(
                _move, one, other.mem_offset
            )


def _past_the_arena(program: ExportedProgram) -> Edits:
    sizes = program.graph_module.meta["non_const_buffer_sizes"]
    for spec, node in _owners(program.graph_module).items():
        if spec.nbytes():
            offset = sizes[spec.mem_id] - (spec.nbytes() - 1) // ALIGNMENT * ALIGNMENT
            offset += ALIGNMENT if spec.nbytes() <= ALIGNMENT else 0
            yield node.name, partial(_move, spec, offset)


def _shift_alias(spec: Any, by: int) -> None:
    spec.byte_offset += by


def _alias_shifted(by: Optional[int], program: ExportedProgram) -> Edits:
    """An alias that starts elsewhere in its root: `by` bytes, or one element."""
    for node in _aliases(program.graph_module):
        spec = node.meta["spec"]
        step = spec.dtype.itemsize if by is None else by
        for shift in (step, -step):
            end = spec.byte_offset + shift + spec.nbytes()
            if spec.byte_offset + shift >= 0 and end <= spec._base.nbytes():
                yield f"{node.name} by {shift}", partial(_shift_alias, spec, shift)


def _past_the_root(program: ExportedProgram) -> Edits:
    for node in _aliases(program.graph_module):
        spec = node.meta["spec"]
        step = spec.dtype.itemsize
        end = spec._base.nbytes() - spec.nbytes() + step
        for offset in (end, spec._base.nbytes(), -step):
            if spec._base.mem_offset + offset >= 0:
                shift = offset - spec.byte_offset
                yield f"{node.name} at {offset}", partial(_shift_alias, spec, shift)


def _rebase(spec: Any, root: TensorSpec) -> None:
    spec._base = root


def _other_root(program: ExportedProgram) -> Edits:
    for module in _modules(program.graph_module):
        roots = _owners(module)
        for node in _aliases(module):
            spec = node.meta["spec"]
            for root, owner in roots.items():
                if (
                    root.mem_offset != spec._base.mem_offset
                    and root.dtype == spec.dtype
                    and root.nbytes() >= spec.byte_offset + spec.nbytes()
                ):
                    yield f"{node.name} of {owner.name}", partial(_rebase, spec, root)


def _plan(program: ExportedProgram, cut: TensorSpec, end: int) -> None:
    """Lets the greedy planner place all, and tells it that `cut` dies at node `end`."""
    module = program.graph_module
    specs = {s for s in _owners(module) if s.lifetime[0] is not None}
    cut.lifetime = [cut.lifetime[0], end]
    result = greedy(ALIGNMENT, specs, module, program.graph_signature)
    for spec, place in result.spec_dict.items():
        spec.mem_id, spec.mem_offset = place.mem_id, place.mem_offset
    module.meta["non_const_buffer_sizes"] = result.bufsizes
    _place_branch_results(module)


def _lifetime_cut(program: ExportedProgram) -> Edits:
    """A plan made as if a tensor, or an alias of it, were not read once more."""
    for spec, node in _owners(program.graph_module).items():
        start, end = spec.lifetime
        if start is None:
            continue
        for short in {start, (start + end) // 2, end - 1} - {end}:
            if start <= short:
                yield f"{node.name} ends at {short}", partial(
                    _plan, program, spec, short
                )


def _move_before(nodes: Sequence[Node], reader: Node) -> None:
    for node in nodes:
        reader.prepend(node)


def _write_before_read(program: ExportedProgram) -> Edits:
    """A kernel moved before one that reads the bytes it writes.

    An update in place stays behind the nodes that take the updated tensor itself: a
    graph that says so before a read is another program, whose plan is right.
    """
    for module in _modules(program.graph_module):
        order = {node: index for index, node in enumerate(module.graph.nodes)}
        nodes = list(order)
        for node in nodes:
            if node.op != "call_function" or not hasattr(node.target, "_schema"):
                continue
            outs, updated = written_arguments(node)
            others = [n for n in node.all_input_nodes if n not in outs]
            others += [user for n in updated for user in n.users if user is not node]
            before = [order[n] for n in others if order[n] < order[node]]
            for reader in nodes[max(before, default=-1) + 1 : order[node]]:
                if reader.op == "call_function" and any(
                    _share_bytes(mine, its)
                    for mine in [*outs, *updated]
                    for its in reader.all_input_nodes
                ):
                    allocs = [out for out in outs if order[out] > order[reader]]
                    yield f"{node.name} before {reader.name}", partial(
                        _move_before, [*allocs, node], reader
                    )


def _share_bytes(one: Node, other: Node) -> bool:
    a, b = ([*tree_leaves(n.meta.get("spec")), None][0] for n in (one, other))
    if not all(isinstance(s, TensorSpec) and s.mem_offset is not None for s in (a, b)):
        return False
    return (
        a.mem_id == b.mem_id
        and a.mem_offset < b.mem_offset + b.nbytes()
        and b.mem_offset < a.mem_offset + a.nbytes()
    )


KINDS: dict[str, Callable[[ExportedProgram], Edits]] = {
    "root shifted onto a live tensor": _root_shifted,
    "two live tensors on the same bytes": _same_bytes,
    "root past the arena's end": _past_the_arena,
    "alias shifted by an element": partial(_alias_shifted, None),
    "alias shifted by 16 bytes": partial(_alias_shifted, 16),
    "alias past its root": _past_the_root,
    "alias of another root": _other_root,
    "lifetime cut": _lifetime_cut,
    "write before a read": _write_before_read,
}
