# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Replays a planned program, and proves that each read sees what was written for it.

Shares no code with the alias analysis or the planner. It walks the graph as the
emitter does, knows which node wrote each byte of each arena, and compares that with
the bytes that a value is made of, wherever it is read.
"""

import operator
from dataclasses import replace
from typing import Any, Dict, Hashable, Iterator, List, Optional, Sequence, Tuple

import torch
from executorch.exir import memory
from executorch.exir.tensor import TensorSpec
from executorch_slice.exir import memory as alias_memory
from executorch_slice.exir.verification.arena_contents import (
    cut_pieces,
    Either,
    holds,
    Memory,
    Piece,
    sides_of,
    Value,
    values_of,
    World,
    Write,
)
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves, tree_map

_COPY = torch.ops.aten.copy_.default
_COND = torch.ops.higher_order.cond
_MAP = torch.ops.higher_order.map_impl
_SCAN = torch.ops.higher_order.scan
_ALIAS_OPS = (memory.view, alias_memory.slice, alias_memory.select)


class PlanVerificationError(RuntimeError):
    """A planned program would read bytes that do not hold the value it needs."""

    def __str__(self) -> str:
        return (
            f"{super().__str__()} Please report it; AliasConfig(enabled=False) lowers "
            "without aliases, and executorch_slice.disabled() as stock ExecuTorch does."
        )


def verify_plan(program: ExportedProgram) -> None:
    """Proves the memory plan of a program that is ready to be emitted.

    Args:
        program: after memory planning; the specs of its nodes carry `mem_id` and
            `mem_offset` (bytes).

    Raises:
        PlanVerificationError: naming the node that reads, the one that overwrote what
            it reads, the bytes and the arena.
    """
    module = program.graph_module
    sizes = module.meta.get("non_const_buffer_sizes")
    replay = _Replay(module, "", Memory(), {}, sizes)
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    for node in inputs:
        replay.values[node] = replay.fill(node.meta.get("spec"), node.name)
    for node in inputs:
        replay.check(replay.values[node], f"the run, through {node.name},")
    replay.run()
    buffers = program.graph_signature.inputs_to_buffers
    for node in inputs:
        if node.target in buffers:
            replay.check(replay.values[node], f"the next run, through {node.name},")


class _Replay:
    """Runs one graph, a method's or a branch's, on the arenas of its method."""

    def __init__(
        self,
        module: GraphModule,
        prefix: str,
        memory: Memory,
        world: World,
        sizes: Optional[List[int]],
    ) -> None:
        self.module = module
        self.prefix = prefix
        self.memory = memory
        self.world = world
        self.sizes = sizes
        self.values: Dict[Node, Any] = {}

    def run(self, *inputs: Any) -> List[Any]:
        """Replays all nodes, with `inputs` for the placeholders of a branch."""
        placeholders = [n for n in self.module.graph.nodes if n.op == "placeholder"]
        self.values.update(zip(placeholders, inputs))
        for node in self.module.graph.nodes:
            if node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                self._read_arguments(node)
                if not self.prefix:
                    self._check_outputs(node)
                return self._leaves(node.args)
        return []

    def fill(self, spec: Any, name: str) -> Any:
        """Values where `spec` plans them, filled by the node or input `name`."""
        if isinstance(spec, (list, tuple)):
            return [self.fill(item, name) for item in spec]
        value = self._place(spec, name)
        if value is not None:
            self._overwrite(value, name)
        return value

    def check(self, value: Any, reader: str) -> None:
        """Raises unless `value` holds what it must, in every world still possible."""
        for one, world in sides_of(value, self.world):
            for want in one.want:
                low, high = one.start + want.start, one.start + want.end
                for piece in self.memory.arena(one.key).read(low, high):
                    at = want.origin + piece.start - low
                    wrong = holds(piece.content, piece.origin, want.content, at, world)
                    if wrong is not None:
                        _fail(one, reader, want.content.node, wrong, piece)

    def _call(self, node: Node) -> None:
        if node.target is memory.alloc:
            self.values[node] = tree_map(
                lambda spec: self._place(spec, self._name(node)), node.meta["spec"]
            )
        elif node.target is operator.getitem:
            items: Any = self.values.get(node.all_input_nodes[0])
            self.values[node] = items[node.args[1]] if items else None
        elif node.target in _ALIAS_OPS:
            self.values[node] = self._alias(node)
        elif node.target is _COND:
            self._cond(node)
        elif node.target in (_MAP, _SCAN):
            self._loop(node)
        elif node.target is not memory.free:
            self._kernel(node)

    def _kernel(self, node: Node) -> None:
        """An operator or delegate: reads its arguments, then writes its results."""
        written = list(_written_arguments(node))
        read = [n for n in node.all_input_nodes if n not in {w for w, _ in written}]
        # copy_ overwrites all of its destination, whatever that holds.
        updated = [
            n for n, is_out in written if not is_out and node.target is not _COPY
        ]
        for argument in [*read, *updated]:
            self.check(self.values.get(argument), self._name(node))
        results = self._results(node, written)
        filled = values_of([results, *(self.values.get(n) for n, _ in written)])
        for value in filled:
            for argument in read:
                self._check_apart(value, self.values.get(argument), node, argument)
        for value in filled:
            self._overwrite(value, self._name(node))
        self.check([results], f"whatever follows {self._name(node)}")
        self.values[node] = results

    def _results(self, node: Node, written: Sequence[Tuple[Node, bool]]) -> Any:
        """Values of the results: that of a written argument where they share a spec."""
        shared = {
            id(spec): value
            for argument, _ in written
            for spec, value in zip(
                tree_leaves(argument.meta.get("spec")),
                tree_leaves(self.values.get(argument)),
            )
        }

        def place(spec: Any) -> Any:
            known = shared.get(id(spec))
            return self._place(spec, self._name(node)) if known is None else known

        return tree_map(place, node.meta.get("spec"))

    def _place(self, spec: Any, name: str) -> Optional[Value]:
        """The memory of `spec`, which nothing has filled yet; None for a scalar."""
        if not isinstance(spec, TensorSpec):
            return None
        # Once each: a view's spec checks its base at every access.
        arena, start, nbytes = spec.mem_id, spec.mem_offset, spec.nbytes()
        if arena is None or start is None:
            return Value(("unplanned", id(spec)), 0, nbytes, [])
        if self.sizes is not None:
            size = self.sizes[arena] if arena < len(self.sizes) else 0
            if not 0 <= start <= size - nbytes:
                raise PlanVerificationError(
                    f"{name} has bytes {start} to {start + nbytes} of arena {arena}, "
                    f"which has {size} bytes."
                )
        return Value(arena, start, nbytes, [])

    def _overwrite(self, value: Value, name: str) -> None:
        write = Write(name)
        self.memory.write(value.key, value.start, value.end, write)
        value.want = [Piece(0, value.nbytes, write, 0)]

    def _alias(self, node: Node) -> Any:
        """A part of the value of its base: elided, or placed there at run time."""
        base, spec = node.all_input_nodes[0], node.meta["spec"]
        if alias_memory.is_stored_part(node):
            return self.fill(spec, self._name(node))
        offset: Optional[int] = 0
        if node.target is not memory.view:
            offset = _offset_in(node, base.meta["spec"], spec)
        placed = None
        if spec.is_static_shape_tensor:
            placed = self._place(spec, self._name(node))

        def part_of(value: Any) -> Any:
            if isinstance(value, Either):
                return Either(value.cond, tuple(map(part_of, value.sides)))
            if value is None:
                return None
            if offset is None or value.contains:
                _check_unplaced(self._name(node), spec)
                return replace(value, contains=True)
            nbytes = value.nbytes if placed is None else placed.nbytes
            if offset + nbytes > value.nbytes:
                raise PlanVerificationError(
                    f"{self._name(node)} stands for bytes {offset} to "
                    f"{offset + nbytes} of {base.name}, which has {value.nbytes} bytes."
                )
            want = cut_pieces(value.want, offset, offset + nbytes)
            if placed is None or not isinstance(placed.key, int):
                return Value(value.key, value.start + offset, nbytes, want)
            return Value(placed.key, placed.start, nbytes, want)

        return part_of(self.values.get(base))

    def _cond(self, node: Node) -> None:
        self._read_arguments(node)
        _, *branches, operands = node.args
        run: Hashable = object()
        memories, results = [], []
        for side, branch in enumerate(branches):
            memories.append(self.memory.copy())
            world = {**self.world, run: side}
            replay = self._enter(branch, memories[-1], world)
            results.append(replay.run(*self._leaves(operands)))
        self.memory.join(run, memories)
        self.values[node] = [Either(run, sides) for sides in zip(*results)]

    def _loop(self, node: Node) -> None:
        """Two rounds, so that what one leaves behind meets the next."""
        self._read_arguments(node)
        carried: List[Any] = []
        if node.target is _SCAN:
            body, carried, scanned, operands = node.args  # type: ignore[misc]
        else:
            body, scanned, operands = node.args  # type: ignore[misc]
        graph = getattr(self.module, body.target).graph
        inputs = [n for n in graph.nodes if n.op == "placeholder"]
        rows = inputs[len(carried) : len(carried) + len(scanned)]
        results = self.fill(node.meta["spec"], self._name(node))
        for _ in range(2):
            self.check(self._leaves(scanned), self._name(node))
            items = [self.fill(row.meta["spec"], self._name(row)) for row in rows]
            replay = self._enter(body, self.memory, self.world)
            replay.run(*results[: len(carried)], *items, *self._leaves(operands))
            self.check(results[len(carried) :], f"the next round of {self._name(node)}")
            for value in values_of(results):
                self._overwrite(value, self._name(node))
        self.values[node] = results

    def _enter(self, branch: Any, memory: Memory, world: World) -> "_Replay":
        """A replay of the graph that the node `branch` names."""
        module = getattr(self.module, branch.target)
        prefix = f"{self.prefix}{branch.target}."
        return _Replay(module, prefix, memory, world, self.sizes)

    def _name(self, node: Node) -> str:
        return self.prefix + node.name

    def _leaves(self, arguments: Any) -> List[Any]:
        leaves = tree_leaves(arguments)
        return [self.values.get(n) if isinstance(n, Node) else None for n in leaves]

    def _read_arguments(self, node: Node) -> None:
        for argument in node.all_input_nodes:
            self.check(self.values.get(argument), self._name(node))

    def _check_outputs(self, output: Node) -> None:
        """What a branch hands out by pointer must not be pointed at callers' memory."""
        for node in output.all_input_nodes:
            spec, value = node.meta.get("spec"), self.values.get(node)
            if isinstance(value, Either) and getattr(spec, "mem_offset", 0) is None:
                raise PlanVerificationError(
                    f"The method returns {node.name}, a branch's own tensor, in memory "
                    "of the caller, where that branch would write in a later run."
                )

    def _check_apart(self, value: Value, read: Any, node: Node, argument: Node) -> None:
        """A kernel must not write the bytes that it reads, unless it is told to."""
        index = node.meta.get("_share_alloc_with_arg_idx")
        if isinstance(index, int) and node.args[index] is argument:
            return
        for other in values_of(read):
            same_bytes = (value.start, value.end) == (other.start, other.end)
            if node.target is _COPY and same_bytes:
                continue
            low, high = max(value.start, other.start), min(value.end, other.end)
            if value.key == other.key and low < high:
                raise PlanVerificationError(
                    f"{self._name(node)} writes bytes {low} to {high} of arena "
                    f"{value.key}, while it reads {argument.name} from there."
                )


def _written_arguments(node: Node) -> Iterator[Tuple[Node, bool]]:
    """The arguments that an operator's schema says it writes, and which are outs."""
    schema = getattr(node.target, "_schema", None)
    for position, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = node.kwargs.get(argument.name)
            if given is None and position < len(node.args):
                given = node.args[position]
            for leaf in tree_leaves(given):
                if isinstance(leaf, Node):
                    yield leaf, argument.is_out


def _check_unplaced(name: str, spec: TensorSpec) -> None:
    """What lies where the run will tell has no place in the plan."""
    if spec.mem_offset is not None:
        raise PlanVerificationError(
            f"{name} has byte {spec.mem_offset} of arena {spec.mem_id}, but it lies "
            "where only the run will tell."
        )


def _offset_in(node: Node, base: TensorSpec, spec: TensorSpec) -> Optional[int]:
    """Bytes from the start of its base to an alias, as its op means it.

    None where sizes or bounds are known only at run time.
    """
    is_static = base.is_static_shape_tensor and spec.is_static_shape_tensor
    if not is_static or any(isinstance(arg, Node) for arg in node.args[1:]):
        return None
    meta = torch.empty_strided(base.shape, base.stride, dtype=base.dtype, device="meta")
    view = node.target(meta, *node.args[1:])  # type: ignore[operator]
    shape, stride = list(spec.shape), list(spec.stride)
    lies_together = all(
        size == 1 or have == want
        for size, have, want in zip(view.shape, view.stride(), stride)
    )
    if list(view.shape) != shape or not (lies_together or not view.numel()):
        raise PlanVerificationError(
            f"{node.name} stands for a tensor of shape {shape} and stride {stride}, "
            f"but its base has {list(view.shape)} and {list(view.stride())} there."
        )
    return int(view.storage_offset()) * view.itemsize if view.numel() else 0


def _fail(value: Value, reader: str, writer: str, wrong: str, piece: Piece) -> None:
    raise PlanVerificationError(
        f"{reader} reads bytes {piece.start} to {piece.end} of arena {value.key} as "
        f"what {writer} wrote, but they hold {wrong}."
    )
