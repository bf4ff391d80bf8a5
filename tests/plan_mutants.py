# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Breaks good memory plans in ways that change what a reader sees.

`Judge` runs a planned program in Python, its tensors at their planned bytes of real
arenas, and compares each byte that is read with what the good plan gave that reader.
A mutant counts only where one differs, so an edit that no reader can notice (a tensor
shifted into bytes that are free, a shift between equal values) is none. The judge
knows nothing of the plan verifier: it compares values.
"""

import operator
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Optional

import torch
from executorch.exir import memory
from executorch.exir.memory_planning import greedy
from executorch.exir.tensor import TensorSpec
from executorch_slice.exir.memory import is_alias
from executorch_slice.exir.memory_planning import _place_branch_results
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

Inputs = tuple[Tensor, ...]
ALIGNMENT = 16  # of the planner


class ReadChanged(Exception):
    """A reader was given other bytes than under the good plan."""


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
            for reader, read in _ArenaRun(self.program).run(inputs):
                yield (number, reader), read


class _ArenaRun:
    """One run of a program on arenas of its own; yields each read as it happens."""

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program
        self.arenas = [
            torch.full((size,), 0x5A, dtype=torch.uint8)
            for size in program.graph_module.meta["non_const_buffer_sizes"]
        ]

    def run(self, inputs: Inputs) -> Iterator[tuple[str, bytes]]:
        program, given = self.program, iter(inputs)
        values: dict[Node, Any] = {}
        placeholders = [n for n in program.graph.nodes if n.op == "placeholder"]
        for node, spec in zip(placeholders, program.graph_signature.input_specs):
            if spec.kind is InputKind.USER_INPUT:
                value = next(given)
            else:
                name: Any = spec.target
                value = program.state_dict.get(name)
                value = program.constants[name] if value is None else value
            is_planned = node.meta["spec"].mem_offset is not None
            values[node] = (
                self._place(node.meta["spec"]).copy_(value) if is_planned else value
            )
        yield from self._run(program.graph_module, "", values)
        for node in program.graph_signature.inputs_to_buffers:
            (buffer,) = [n for n in placeholders if n.name == node]
            yield f"the next run, {node}", _bytes(values[buffer])

    def _run(
        self, module: GraphModule, prefix: str, values: dict[Node, Any]
    ) -> Iterator[tuple[str, bytes]]:
        for node in module.graph.nodes:
            name = prefix + node.name
            if node.op == "get_attr":
                values[node] = getattr(module, node.target)
            elif node.op == "output":
                yield from self._read(name, node, values)
            elif node.target is memory.alloc:
                values[node] = tree_map(self._place, node.meta["spec"])
            elif node.target is operator.getitem:
                values[node] = values[node.args[0]][node.args[1]]
            elif is_alias(node):
                values[node] = self._alias(node, values)
            elif node.target is torch.ops.higher_order.cond:
                yield from self._read(name, node, values)
                predicate, *branches, operands = node.args
                branch = branches[0 if values[predicate].item() else 1]
                inner = values[branch]
                inputs = [n for n in inner.graph.nodes if n.op == "placeholder"]
                bound = dict(zip(inputs, (values[n] for n in operands)))
                yield from self._run(inner, f"{prefix}{branch.target}.", bound)
                results = tree_leaves(inner.graph.output_node().args)
                values[node] = [bound[n] for n in results]
            elif node.op == "call_function" and node.target is not memory.free:
                yield from self._kernel(name, node, values)

    def _kernel(
        self, name: str, node: Node, values: dict[Node, Any]
    ) -> Iterator[tuple[str, bytes]]:
        """Runs on copies; a kernel may have soiled its outs before it reads."""
        outs, updated = _written(node)
        for out in tree_leaves([values[n] for n in outs]):
            _bytes_of(out).fill_(0xA5)
        reads = [n for n in node.all_input_nodes if n not in outs]
        yield from self._read(name, node, values, reads)
        copies = {
            n: tree_map_only(Tensor, torch.clone, values[n])
            for n in node.all_input_nodes
        }
        args, kwargs = tree_map_only(Node, copies.get, (node.args, node.kwargs))
        result = node.target(*args, **kwargs)  # type: ignore[operator]
        written = [*updated, *outs]
        places = tree_leaves([values[n] for n in written])
        for place, copy in zip(places, tree_leaves([copies[n] for n in written])):
            place.copy_(copy)
        if len(places) > 1:  # they may lie on each other
            for index, place in enumerate(places):
                yield f"after {name}, {index}", _bytes(place)
        if isinstance(result, (list, tuple)):
            values[node] = places
        else:
            values[node] = values[written[0]]  # what a list is split into, or a tensor

    def _alias(self, node: Node, values: dict[Node, Any]) -> Tensor:
        spec = node.meta["spec"]
        if spec.mem_offset is not None:
            return self._place(spec)
        base: Any = node.args[0]
        return node.target(values[base], *node.args[1:])  # type: ignore[operator]

    def _place(self, spec: Any) -> Any:
        if not isinstance(spec, TensorSpec):
            return spec
        nbytes = spec.nbytes()
        if spec.mem_offset is None:
            flat = torch.zeros(nbytes, dtype=torch.uint8)
        else:
            end = spec.mem_offset + nbytes
            if not 0 <= spec.mem_offset <= end <= len(self.arenas[spec.mem_id]):
                raise ReadChanged(f"bytes {spec.mem_offset} to {end} are in no arena")
            flat = self.arenas[spec.mem_id][spec.mem_offset : end]
        typed = flat.view(spec.dtype)
        return typed.as_strided(spec.shape, spec.stride, typed.storage_offset())

    def _read(
        self,
        name: str,
        node: Node,
        values: dict[Node, Any],
        reads: Optional[Sequence[Node]] = None,
    ) -> Iterator[tuple[str, bytes]]:
        for index, argument in enumerate(node.all_input_nodes):
            if reads is None or argument in reads:
                for leaf in tree_leaves(values[argument]):
                    if isinstance(leaf, Tensor) and self._is_planned(leaf):
                        yield f"{name}, argument {index}", _bytes(leaf)


    def _is_planned(self, value: Tensor) -> bool:
        """Whether it lies in an arena; weights do not, and nobody overwrites them."""
        at = value.untyped_storage().data_ptr()
        return any(at == arena.untyped_storage().data_ptr() for arena in self.arenas)


def _bytes_of(value: Tensor) -> Tensor:
    """The bytes of a dense tensor, in the order that they lie in."""
    flat = value.as_strided((value.numel(),), (1,), value.storage_offset())
    return flat.view(torch.uint8)


def _bytes(value: Tensor) -> bytes:
    return _bytes_of(value).numpy().tobytes()


def _written(node: Node) -> tuple[list[Node], list[Node]]:
    """The out arguments of an operator, and those that it updates in place."""
    outs: list[Node] = []
    updated: list[Node] = []
    for position, argument in enumerate(node.target._schema.arguments):  # type: ignore
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = node.kwargs.get(argument.name)
            if given is None and position < len(node.args):
                given = node.args[position]
            nodes = [n for n in tree_leaves(given) if isinstance(n, Node)]
            (outs if argument.is_out else updated).extend(nodes)
    return outs, updated


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
            outs, updated = _written(node)
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
