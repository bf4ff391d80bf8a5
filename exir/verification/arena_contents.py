# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""What lies where while a planned program is replayed, and what should lie there."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import (
    Any,
    Dict,
    Hashable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)


World = Dict[Hashable, int]  # for each cond, the branch that has run


@dataclass(frozen=True, eq=False)
class Write:
    """One event that fills bytes: a node that runs, or an input that is set."""

    node: str


@dataclass(frozen=True, eq=False)
class Fork:
    """Bytes that depend on which branch of a cond ran; each side may fork again."""

    cond: Hashable
    sides: Tuple[Any, Any]


class Piece(NamedTuple):
    """Bytes `start` to `end` of an arena, and the content of byte `start`.

    `origin` counts from the first byte that `content` wrote, so that a byte is known
    by who wrote it and which of his bytes it is.
    """

    start: int
    end: int
    content: Any
    origin: int


class Arena:
    """The contents of one arena, as pieces in order of their start."""

    def __init__(self) -> None:
        self._pieces: List[Piece] = []
        self._starts: List[int] = []

    def read(self, start: int, end: int) -> Iterator[Piece]:
        """The pieces between two bytes, cut to them; bytes never written are None."""
        if start == end:
            return
        at = start
        first = max(bisect_right(self._starts, start) - 1, 0)
        for piece in self._pieces[first : bisect_left(self._starts, end)]:
            if piece.end <= at:
                continue
            if piece.start > at:
                yield Piece(at, piece.start, None, 0)
                at = piece.start
            stop = min(piece.end, end)
            yield Piece(at, stop, piece.content, piece.origin + at - piece.start)
            at = stop
        if at < end:
            yield Piece(at, end, None, 0)

    def write(self, start: int, end: int, content: Any, origin: int = 0) -> None:
        """Fills the bytes between two with `content`, from its byte `origin` on."""
        first = max(bisect_right(self._starts, start) - 1, 0)
        last = bisect_left(self._starts, end)
        kept = []
        for piece in self._pieces[first:last]:
            if piece.start < start:
                kept.append(piece._replace(end=min(piece.end, start)))
        kept.append(Piece(start, end, content, origin))
        for piece in self._pieces[first:last]:
            if piece.end > end:
                moved = piece.origin + end - piece.start
                kept.append(Piece(end, piece.end, piece.content, moved))
        self._pieces[first:last] = kept
        self._starts[first:last] = [piece.start for piece in kept]

    def copy(self) -> "Arena":
        arena = Arena()
        arena._pieces, arena._starts = list(self._pieces), list(self._starts)
        return arena


@dataclass
class Memory:
    """All arenas, and the ranges that have been written since `written` was emptied."""

    arenas: Dict[Hashable, Arena] = field(default_factory=dict)
    written: List[Tuple[Hashable, int, int]] = field(default_factory=list)

    def arena(self, key: Hashable) -> Arena:
        return self.arenas.setdefault(key, Arena())

    def write(self, key: Hashable, start: int, end: int, content: Any) -> None:
        if start < end:
            self.arena(key).write(start, end, content)
            self.written.append((key, start, end))

    def copy(self) -> "Memory":
        return Memory({key: arena.copy() for key, arena in self.arenas.items()})

    def join(self, cond: Hashable, sides: Sequence["Memory"]) -> None:
        """Takes over what either of two copies wrote: all that it holds may be so."""
        for key, start, end in [*sides[0].written, *sides[1].written]:
            arena = self.arena(key)
            cuts = sorted(
                {
                    cut
                    for side in sides
                    for piece in side.arena(key).read(start, end)
                    for cut in (piece.start, piece.end)
                }
            )
            for low, high in zip(cuts, cuts[1:]):
                (a,), (b,) = (list(s.arena(key).read(low, high)) for s in sides)
                if a.content is b.content and a.origin == b.origin:
                    arena.write(low, high, a.content, a.origin)
                else:
                    sides_of = ((a.content, a.origin), (b.content, b.origin))
                    arena.write(low, high, Fork(cond, sides_of))
            self.written.append((key, start, end))


def holds(
    content: Any, origin: int, want: Write, at: int, world: World
) -> Optional[str]:
    """None if a byte is byte `at` of `want` in every world that is still possible.

    Args:
        content, origin: what the byte holds.
        world: for each cond, the branch that is assumed to have run.

    Returns:
        None, or what it holds instead.
    """
    if isinstance(content, Fork):
        for side, (inner, start) in enumerate(content.sides):
            if world.get(content.cond, side) == side:
                wrong = holds(inner, start + origin, want, at, world)
                if wrong is not None:
                    return wrong
        return None
    if content is None:
        return "nothing"
    if content is not want:
        which = "what else" if content.node == want.node else "what"
        return f"{which} {content.node} wrote"
    return None if origin == at else f"byte {origin} of it instead of byte {at}"


@dataclass(eq=False)
class Value:
    """A tensor at run time.

    Attributes:
        key: its arena, or what stands for memory outside of all arenas.
        start, nbytes: its bytes.
        want: what they must hold, as pieces that count from its own first byte.
        contains: whether the tensor lies somewhere in these bytes, where the run will
            tell.
    """

    key: Hashable
    start: int
    nbytes: int
    want: List[Piece]
    contains: bool = False

    @property
    def end(self) -> int:
        return self.start + self.nbytes


@dataclass(eq=False)
class Either:
    """What a cond hands out: one value or the other, by the branch that ran."""

    cond: Hashable
    sides: Tuple[Any, Any]


def sides_of(value: Any, world: World) -> Iterator[Tuple[Value, World]]:
    """Each value that `value` may be, with the branches that make it so."""
    if isinstance(value, Value):
        yield value, world
    elif isinstance(value, Either):
        for side, one in enumerate(value.sides):
            if world.get(value.cond, side) == side:
                yield from sides_of(one, {**world, value.cond: side})
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from sides_of(item, world)


def values_of(value: Any) -> List[Value]:
    return [one for one, _ in sides_of(value, {})]


def cut_pieces(pieces: List[Piece], start: int, end: int) -> List[Piece]:
    """Bytes `start` to `end` of what `pieces` describe, counted from `start`."""
    return [
        Piece(
            max(piece.start, start) - start,
            min(piece.end, end) - start,
            piece.content,
            piece.origin + max(start - piece.start, 0),
        )
        for piece in pieces
        if piece.start < end and piece.end > start
    ]
