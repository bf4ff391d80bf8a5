# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Where the tensors of a lowered program lie, when they live, and what they share.

All is read from the program's schema, so it is known of any `.pte`. An alias has no
instruction: it is a tensor that is read and that nothing writes, whose bytes one other
tensor has written.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Optional

from executorch.exir.schema import ExecutionPlan, Tensor
from executorch.exir.tensor import get_scalar_type
from executorch_slice.instruction_access import Access, accesses_of


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor in an arena.

    Attributes:
        value: its index among the values of the method.
        name: of the FX node, where that is known; else the value and its writer.
        writer: the operator or delegate that writes it first, or "input"; empty for an
            alias and for state.
        arena: index among the method's memory buffers.
        byte_offset: bytes from the start of the arena.
        nbytes: bytes, at the upper bound of dynamic sizes.
        dtype: as ``float32``.
        sizes: elements of each dim.
        first, last: indices of the instructions between which its bytes are in use,
            both included. A root is in use as long as its aliases are.
        root: value of the tensor that it is an alias of; None for a tensor of its own.
        reuses: values whose bytes it takes over, as they are read no more.
    """

    value: int
    name: str
    writer: str
    arena: int
    byte_offset: int
    nbytes: int
    dtype: str
    sizes: tuple[int, ...]
    first: int = 0
    last: int = 0
    root: Optional[int] = None
    reuses: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """Bytes from the start of the arena to the first byte behind the tensor."""
        return self.byte_offset + self.nbytes


class KnownValue(NamedTuple):
    """What the graph says of a value: its node's name, and whether it is an alias."""

    name: str
    is_alias: bool


@dataclass(frozen=True)
class Arena:
    """A memory buffer of a method, and its tensors by offset, roots before aliases.

    Attributes:
        nbytes: planned bytes.
        instructions: how many the method has.
        peak_bytes: the most bytes that tensors in use hold at once.
        peak_instruction: the first instruction at which they do.
    """

    method: str
    index: int
    nbytes: int
    instructions: int
    tensors: tuple[PlannedTensor, ...]
    peak_bytes: int
    peak_instruction: int


def tensor_nbytes(tensor: Tensor) -> int:
    """Bytes of `tensor`, at the upper bound of dynamic sizes."""
    nbytes: int = math.prod(tensor.sizes) * get_scalar_type(tensor.scalar_type).itemsize
    return nbytes


def arenas(plan: ExecutionPlan, known: Mapping[int, KnownValue]) -> list[Arena]:
    """The arenas of a method, in order; those without bytes are left out.

    Args:
        plan: of the method.
        known: what the graph says of values. A value that is not known gets its index
            and the operator that writes it as name; an alias that only a delegate reads
            may be taken for one of its outputs.
    """
    accesses = accesses_of(plan)
    tensors = _planned_tensors(plan, accesses, known)
    state = [value for value in tensors if plan.values[value].val.data_buffer_idx]
    state += _Replay(plan, tensors, known).run(accesses, state)
    # A buffer before its slices, though one of these may be read first.
    state.sort(key=lambda value: (-tensors[value].nbytes, value))
    replay = _Replay(plan, tensors, known)
    replay.run(accesses, state)
    return [
        _arena(plan.name, index, nbytes, len(accesses), replay.met)
        for index, nbytes in enumerate(plan.non_const_buffer_sizes)
        if nbytes
    ]


def _planned_tensors(
    plan: ExecutionPlan, accesses: list[Access], known: Mapping[int, KnownValue]
) -> dict[int, PlannedTensor]:
    writers = {value: "input" for value in plan.inputs}
    for access in accesses:
        for value in access.writes:
            writers.setdefault(value, access.callee)
    tensors = {}
    for value, evalue in enumerate(plan.values):
        tensor = evalue.val
        if isinstance(tensor, Tensor) and tensor.allocation_info is not None:
            writer = writers.get(value, "")
            unnamed = f"%{value} {writer}".rstrip()
            tensors[value] = PlannedTensor(
                value=value,
                name=known[value].name if value in known else unnamed,
                writer=writer,
                arena=tensor.allocation_info.memory_id,
                byte_offset=tensor.allocation_info.memory_offset,
                nbytes=tensor_nbytes(tensor),
                dtype=str(get_scalar_type(tensor.scalar_type)).removeprefix("torch."),
                sizes=tuple(tensor.sizes),
            )
    return tensors


def _arena(
    method: str,
    index: int,
    nbytes: int,
    instructions: int,
    tensors: Mapping[int, PlannedTensor],
) -> Arena:
    here = [t for t in tensors.values() if t.arena == index]
    here.sort(key=lambda t: (t.byte_offset, t.first, t.root is not None, t.value))
    in_use = [0] * max(instructions, 1)
    for t in here:
        for at in range(t.first, t.last + 1) if t.root is None else ():
            in_use[at] += t.nbytes
    peak = max(in_use)
    at_peak = in_use.index(peak)
    return Arena(method, index, nbytes, instructions, tuple(here), peak, at_peak)


class _Writers:
    """Which tensor wrote each byte of an arena last."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, int, int]] = []  # start, end, writer

    def within(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """The runs that overlap bytes `start` to `end`."""
        return [run for run in self.runs if run[0] < end and start < run[1]]

    def write(self, start: int, end: int, writer: int) -> None:
        kept = [run for run in self.runs if run[1] <= start or end <= run[0]]
        for left, right, owner in self.within(start, end):
            kept += [(left, start, owner)] if left < start else []
            kept += [(end, right, owner)] if end < right else []
        self.runs = [*kept, (start, end, writer)]

    def only_writer(self, start: int, end: int) -> Optional[int]:
        """The tensor that wrote all bytes `start` to `end`, if it is one."""
        runs = self.within(start, end)
        writers = {writer for _, _, writer in runs}
        covered = sum(min(end, right) - max(start, left) for left, right, _ in runs)
        return writers.pop() if len(writers) == 1 and covered == end - start else None


class _Replay:
    """Follows the instructions of a method, and what they leave in its arenas."""

    def __init__(
        self,
        plan: ExecutionPlan,
        tensors: dict[int, PlannedTensor],
        known: Mapping[int, KnownValue],
    ) -> None:
        self.plan = plan
        self.known = known
        self.tensors = tensors
        self.met: dict[int, PlannedTensor] = {}
        self.last_use: dict[int, int] = {}
        self.writers = {t.arena: _Writers() for t in tensors.values()}

    def run(self, accesses: list[Access], state: list[int]) -> list[int]:
        """Returns the values that are read before they are written, and no aliases.

        Args:
            accesses: of the instructions, in order.
            state: values in use from the first instruction to the last, larger first.
        """
        for at, access in enumerate(accesses):
            for value in (*access.reads, *access.unsure, *access.writes):
                self.last_use[value] = at
        for value in (*state, *self.plan.outputs):
            self.last_use[value] = len(accesses)
        for value in (*state, *self.plan.inputs):
            self._read(value, 0)
        unwritten = []
        for at, access in enumerate(accesses):
            unwritten += [value for value in access.reads if self._read(value, at)]
            for value in access.unsure:
                if self._is_input(value, at):
                    self._read(value, at)
                else:
                    self._write(value, at)
            for value in access.writes:
                self._write(value, at)
        for value in (*self.plan.outputs, *state):
            self._read(value, max(len(accesses) - 1, 0))
        return unwritten

    def _is_input(self, value: int, at: int) -> bool:
        """Whether a delegate reads `value` rather than writes it, by all one can see.

        No output lies in a tensor that is used later.
        """
        if value in self.known:
            return self.known[value].is_alias
        tensor = self.tensors[value]
        place = tensor.byte_offset, tensor.end
        root = self.writers[tensor.arena].only_writer(*place)
        return root is not None and self.last_use[root] > at

    def _read(self, value: int, at: int) -> bool:
        """Whether nothing has written `value`, which is then a tensor of its own."""
        tensor = self.tensors.get(value)
        if tensor is None:
            return False
        is_new = value not in self.met
        if is_new:
            place = tensor.byte_offset, tensor.end
            root = self.writers[tensor.arena].only_writer(*place)
            self.met[value] = replace(tensor, first=at, last=at, root=root)
            if root is None:
                self._claim(value)
        self._extend(value, at)
        return is_new and self.met[value].root is None

    def _write(self, value: int, at: int) -> None:
        tensor = self.tensors.get(value)
        if tensor is None:
            return
        if value not in self.met:
            self.met[value] = replace(tensor, first=at, last=at)
            self._claim(value)
        self._extend(value, at)

    def _claim(self, value: int) -> None:
        tensor = self.met[value]
        writers = self.writers[tensor.arena]
        place = tensor.byte_offset, tensor.end
        reuses = tuple(sorted({run[2] for run in writers.within(*place)}))
        self.met[value] = replace(tensor, reuses=reuses)
        writers.write(*place, value)

    def _extend(self, value: int, at: int) -> None:
        root = self.met[value].root
        for one in (value,) if root is None else (value, root):
            self.met[one] = replace(self.met[one], last=max(at, self.met[one].last))
