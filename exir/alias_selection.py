# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Which of the safe aliases are made: none that makes an arena larger.

An alias needs no bytes of its own, but keeps its whole root alive until it has been
read. All are tried first. Where that grows an arena, each root takes its aliases in the
order in which they are read last, as far as the bytes that are alive at any time stay
within the arena that the graph has without aliases; the planner itself confirms.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import Dict, FrozenSet, Iterable, List, Optional, Set, Tuple

import torch
from executorch_slice.exir.alias_analysis import AliasAnalysis
from executorch_slice.exir.alias_copy import Copy
from executorch_slice.exir.alias_decision import Reason
from executorch_slice.exir.alias_layout import upper_bound_nbytes
from executorch_slice.exir.arena_model import ArenaModel
from torch.fx import Node

# How many plans the planner makes, and how many tensors it places in them, before what
# is in doubt stays a copy.
_ALWAYS_PLANNED = 5
_MOST_PLACED = 3_000


@dataclass(eq=False)
class Unit:
    """Copies that become aliases together: one, or all pieces of a split.

    Attributes:
        last_read: index of the last node that reads what is derived from them.
        growth: bytes that they were found to add to the arenas.
    """

    copies: List[Copy] = field(default_factory=list)
    last_read: int = -1
    growth: int = 0

    @property
    def source(self) -> Node:
        return self.copies[0].source

    @property
    def base(self) -> Node:
        return self.copies[0].base

    @cached_property
    def nbytes(self) -> int:
        return sum(upper_bound_nbytes(copy.node.meta["spec"]) for copy in self.copies)

    @property
    def joined(self) -> bool:
        return self.copies[0].joined

    def join(self, joined: bool = True) -> None:
        for copy in self.copies:
            copy.joined = joined

    def refuse(self, reason: Reason) -> None:
        for copy in self.copies:
            copy.refuse(reason, self.growth)


def select_aliases(model: ArenaModel, may_grow: bool, min_alignment: int) -> None:
    """Refuses the aliases of one graph that would grow an arena or are misaligned.

    Args:
        model: of the graph, whose analysis has decided what is safe.
        may_grow: whether arenas may be larger than without aliases.
        min_alignment: bytes of which each alias's offset in its arena is a multiple.
    """
    units = _units(model.analysis)
    if not units:
        return
    _refuse_misaligned(units, model, min_alignment)
    units = _joined(units)
    while units:
        if not may_grow:
            _Selection(model, units).run()
            units = _joined(units)
        model.analysis.locate()
        if not _refuse_misplaced(units, model, min_alignment):
            return
        units = _joined(units)
    model.analysis.locate()


def _units(analysis: AliasAnalysis) -> List[Unit]:
    found: Dict[Node, Unit] = {}
    for copy in analysis.copies.values():
        if copy.joined and not copy.is_view:
            found.setdefault(copy.source, Unit()).copies.append(copy)
    return list(found.values())


def _joined(units: Iterable[Unit]) -> List[Unit]:
    return [unit for unit in units if unit.joined]


def _refuse_misaligned(units: List[Unit], model: ArenaModel, alignment: int) -> None:
    """Refuses what is misaligned wherever its root is placed.

    What is placed when the program runs must keep the alignment that its base has.
    """
    for unit in units:
        if any(_may_misalign(copy, alignment) for copy in unit.copies):
            unit.refuse(Reason.MISALIGNED)
    if alignment % model.memory.alignment and model.memory.alignment % alignment:
        return
    step = min(alignment, model.memory.alignment)
    for unit in units:
        if any(copy.byte_offset % step for copy in unit.copies):
            unit.refuse(Reason.MISALIGNED)


def _may_misalign(copy: Copy, alignment: int) -> bool:
    """Whether an instruction may place a copy at no multiple of it from its base."""
    if not copy.kernel or copy.node.meta["spec"].dtype.itemsize % alignment == 0:
        return False
    return copy.layout is None or copy.layout.byte_offset % alignment != 0


def _refuse_misplaced(units: List[Unit], model: ArenaModel, alignment: int) -> bool:
    """Refuses what is misaligned where the planner puts its root; whether any is.

    Roots that are placed later, branch results and shared buffers, may lie anywhere.
    Constants, and what is placed when the program runs, have no place in an arena.
    """
    if model.memory.alignment % alignment == 0 or not units:
        return False
    _, planned = model.plan()
    found = False
    for unit in units:
        (root,) = model.specs(unit.copies[0].root)
        place = planned.get(id(root))
        start = None if place is None else place.mem_offset
        if root.const or unit.copies[0].kernel:
            continue
        if start is None or any(
            (start + copy.byte_offset) % alignment for copy in unit.copies
        ):
            unit.refuse(Reason.MISALIGNED)
            found = True
    return found


class _Selection:
    """Keeps as many bytes of the `units` aliased as the arenas of `model` allow."""

    def __init__(self, model: ArenaModel, units: List[Unit]) -> None:
        self.model = model
        self.analysis = model.analysis
        self.units = units
        self.plans: Dict[FrozenSet[Unit], Optional[List[int]]] = {}
        self.placed = 0

    def run(self) -> None:
        everything = self._plan()
        self._keep([])
        self._count_all()
        needed = int(self.alive.max()) + sum(self.model.reserved)
        if everything and len(everything) == 2 and sum(everything) <= needed:
            self._keep(self.units)  # no plan without aliases is smaller
            return
        limits = self._plan()
        if limits is None:  # there is no plan without aliases to compare with
            self._keep(self.units)
            return
        self.limits = limits
        growth = self._excess(everything)
        if growth == 0:
            self._keep(self.units)
            return
        self.limit = sum(self.limits) - sum(self.model.reserved)
        kept = self._confirm(*self._fitting())
        self._keep(kept)
        for unit in self.units:
            if unit not in kept:
                unit.growth = unit.growth or growth
                unit.refuse(Reason.WOULD_GROW)

    def _plan(self) -> Optional[List[int]]:
        """Bytes of each arena under the present verdicts; None if there is no place."""
        kept = frozenset(_joined(self.units))
        if kept not in self.plans:
            self.plans[kept] = None
            try:
                self.plans[kept], planned = self.model.plan()
                self.placed += len(planned)
            except Exception:  # of whatever kind the algorithm raises
                pass
        return self.plans[kept]

    def _count_all(self) -> None:
        """Notes lifetime and size of each tensor, and what is alive at each node."""
        self.lifetimes = self.model.lifetimes()
        self.sizes = {
            key: spec.allocated_memory
            for key, spec in self.model.tensors(self.lifetimes).items()
            if spec.storage_base is None
        }
        self.alive = torch.zeros(len(self.model.nodes), dtype=torch.int64)
        for key, size in self.sizes.items():
            self._count(self.lifetimes[key], size)

    def _keep(self, units: Iterable[Unit]) -> None:
        for unit in self.units:
            unit.join(False)
        for unit in units:
            unit.join()

    def _excess(self, sizes: Optional[List[int]]) -> int:
        """Bytes by which arenas exceed what they are without aliases."""
        if sizes is None:
            return 1 + sum(self.limits)
        return sum(max(size - limit, 0) for size, limit in zip(sizes, self.limits))

    def _excess_with(self, units: List[Unit]) -> int:
        if self._has_planned_enough():
            return self._excess(self.plans.get(frozenset(units)))
        self._keep(units)
        return self._excess(self._plan())

    def _has_planned_enough(self) -> bool:
        return len(self.plans) >= _ALWAYS_PLANNED and self.placed >= _MOST_PLACED

    def _confirm(self, batches: List[List[Unit]], free: int) -> Set[Unit]:
        """As many bytes of units as the planner really has room for.

        If not all of `batches` fit, tries them in two orders: as they are, from behind
        the first `free` if those fit; and those with most bytes first.
        """
        units = _flat(batches)
        if not self._excess_with(units):
            return set(units)
        start = _flat(batches[:free])
        if self._excess_with(start):
            start, free = [], 0
        in_order = self._fill(start, batches[free:])
        self.placed = 0
        largest = self._fill([], sorted(batches, key=lambda b: -_nbytes(b)))
        return set(max(in_order, largest, key=_nbytes))

    def _fill(self, kept: List[Unit], batches: List[List[Unit]]) -> List[Unit]:
        """`kept` and each of `batches` that fits beside, or its first units that do."""
        while batches and not self._has_planned_enough():
            count = self._count_fitting(kept, batches)
            kept = [*kept, *_flat(batches[:count])]
            batches = batches[count:]
            if batches:
                too_large, *batches = batches
                singly = [[unit] for unit in too_large[:-1]]
                kept += too_large[: self._count_fitting(kept, singly)]
        return kept

    def _count_fitting(self, kept: List[Unit], batches: List[List[Unit]]) -> int:
        """How many of `batches`, from the first, there is room for beside `kept`."""
        return bisect_left(
            range(1, len(batches) + 1),
            True,
            key=lambda n: self._excess_with([*kept, *_flat(batches[:n])]) > 0,
        )

    def _fitting(self) -> Tuple[List[List[Unit]], int]:
        """The units that keep all that is alive within the limit, in batches.

        A batch is what one root serves, in the order in which it is read last. Those
        come first that keep the fewest bytes alive for the shortest time; how many
        keep none alive is the second result.
        """
        waiting = self.units
        found: List[Tuple[int, List[Unit]]] = []
        for through_waiting in (True, True, False):
            for root, group in self._groups(waiting, through_waiting):
                taken, cost = self._accept(root, group)
                found.append((cost, taken))
                for unit in taken:
                    unit.join()
            waiting = [unit for unit in waiting if not unit.joined]
        found = sorted((item for item in found if item[1]), key=itemgetter(0))
        return [taken for _, taken in found], sum(not cost for cost, _ in found)

    def _groups(
        self, waiting: List[Unit], through_waiting: bool
    ) -> List[Tuple[Node, List[Unit]]]:
        """Units by the root they would have, those with most bytes first.

        Args:
            through_waiting: whether what is derived from another waiting unit counts
                to the root of that one, or has its result as the root.
        """
        by_node = {copy.node: unit for unit in waiting for copy in unit.copies}
        groups: Dict[Node, List[Unit]] = {}
        for unit in waiting:
            unit.last_read = max(self.lifetimes[key][1] for key in self._own(unit))
        for unit in reversed(waiting):
            root: Node = unit.base
            base: Optional[Node] = root
            while base is not None:
                root = base
                parent = by_node.get(root)
                if parent is not None and not through_waiting:
                    break
                if parent is not None:
                    parent.last_read = max(parent.last_read, unit.last_read)
                    base = parent.base
                else:
                    base = self.analysis.parent(root)
            groups.setdefault(root, []).append(unit)
        ordered = list(groups.items())
        ordered.sort(key=lambda item: -sum(unit.nbytes for unit in item[1]))
        return ordered

    def _accept(self, root: Node, group: List[Unit]) -> Tuple[List[Unit], int]:
        """As many units as fit, from the one read first, and how much that costs.

        The cost is in bytes of `root` times the nodes for which it lives longer.

        To leave out another than the one that is read last frees nothing.
        """
        (spec,) = self.model.specs(root)
        lifetime, size = self.lifetimes[id(spec)], self.sizes.get(id(spec), 0)
        in_order = sorted(group, key=lambda unit: unit.last_read)
        for last_read in sorted({unit.last_read for unit in group}, reverse=True):
            taken = [unit for unit in in_order if unit.last_read <= last_read]
            longer = [lifetime[1] + 1, last_read]
            own = [key for unit in taken for key in self._own(unit)]
            self._count(longer, size)
            for key in own:
                self._count(self.lifetimes[key], -self.sizes[key])
            growth = self._peak(longer) - self.limit
            if growth <= 0:
                lifetime[1] = max(lifetime[1], last_read)
                return taken, size * max(longer[1] - longer[0] + 1, 0)
            for key in own:
                self._count(self.lifetimes[key], self.sizes[key])
            self._count(longer, -size)
            for unit in taken:
                if unit.last_read == last_read:
                    unit.growth = growth
        return [], 0

    def _own(self, unit: Unit) -> List[int]:
        """The specs that need no memory once `unit` is aliased."""
        specs = self.model.specs_of(unit.source)
        return [id(spec) for spec in specs if id(spec) in self.sizes]

    def _count(self, lifetime: List[int], size: int) -> None:
        self.alive[lifetime[0] : lifetime[1] + 1] += size

    def _peak(self, lifetime: List[int]) -> int:
        alive = self.alive[lifetime[0] : lifetime[1] + 1]
        return int(alive.max()) if len(alive) else 0


def _flat(batches: Iterable[List[Unit]]) -> List[Unit]:
    return [unit for batch in batches for unit in batch]


def _nbytes(units: Iterable[Unit]) -> int:
    return sum(unit.nbytes for unit in units)
