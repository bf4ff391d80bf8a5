# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Storage roots, byte ranges and writes: the one place that says "safe" or why not.

A copy may become an alias when its result, as ATen's view op lays it out, is dense
in its base, its root is planned at a fixed address, and no write to that root lands
between the copy and the last reader of what is derived from it. In doubt a copy
stays the copy it was.
"""

import operator
from bisect import bisect_right
from typing import AbstractSet, Any, Dict, List, Optional

from executorch.exir.tensor import TensorSpec
from executorch_slice.exir.alias_constants import parts_to_store
from executorch_slice.exir.alias_copy import Copy
from executorch_slice.exir.alias_decision import Reason
from executorch_slice.exir.alias_effects import MemoryEffects
from executorch_slice.exir.alias_layout import (
    family_of,
    has_static_arguments,
    is_contiguous,
    is_dense_at_run_time,
    is_dense_tensor,
    overload_of,
    PIECE_FAMILY,
    view_layouts,
)
from executorch_slice.exir.alias_roots import PlannedMemory, SafeRoots
from executorch_slice.exir.memory import alias_root, is_alias
from torch.fx import GraphModule, Node

# Views of such roots are elided as in stock ExecuTorch. A view of any other root
# without an address is an `et_view`, which points it there at run time.
_VIEW_IS_ALIAS = frozenset(
    {Reason.CONSTANT, Reason.CUSTOM_PLANNER, Reason.DEVICE, Reason.UNKNOWN_BASE}
)
_PLACED_AT_RUN_TIME = frozenset(
    {
        Reason.CONTROL_FLOW_OPERAND,
        Reason.CONTROL_FLOW_RESULT,
        Reason.DELEGATE_OUTPUT,
        Reason.DYNAMIC,
        Reason.UNPLANNED_BUFFER,
        Reason.UNPLANNED_INPUT,
        Reason.UNPLANNED_OUTPUT,
    }
)


class AliasAnalysis:
    """Decides every copy of one graph: see `copies` once it is constructed.

    Args:
        module: a method's graph, or a branch of its control flow, after SpecPropPass
            and before out variants.
        memory: what the planner will place.
        is_method: False for a branch, whose placeholders are bound at run time.
        rows: placeholders of a branch that are planned with it instead.
        enabled: False lets every copy stay one.
        emit_et_slice: whether the runtime has `et_slice` and `et_select`, for what has
            no address at lowering.

    Attributes:
        copies: each copy by the node that holds its result.
        pieces: the pieces of each split that is not unused.
    """

    def __init__(
        self,
        module: GraphModule,
        memory: PlannedMemory,
        is_method: bool = True,
        rows: AbstractSet[Node] = frozenset(),
        enabled: bool = True,
        emit_et_slice: bool = False,
    ) -> None:
        self.memory = memory
        self.is_method = is_method
        self.rows = rows
        self.emit_et_slice = emit_et_slice and memory.trusted
        self.effects = MemoryEffects(module)
        self.copies: Dict[Node, Copy] = {}
        self.pieces: Dict[Node, List[Copy]] = {}
        self._safe_roots = SafeRoots(module, memory, is_method, rows)
        self._moved: Dict[Node, Reason] = {}
        for node in module.graph.nodes:
            self._add_copies(node)
        if enabled:
            self._decide()
        else:
            for copy in self.copies.values():
                copy.refuse(Reason.SWITCHED_OFF)
        self.locate()

    def locate(self) -> None:
        """Finds root and byte offset of each copy under the present verdicts."""
        for copy in self.copies.values():
            self._locate(copy)

    def alias_base(self, node: Node) -> Optional[Node]:
        """What `node` is an alias of under the present verdicts, if it is one."""
        copy = self.copies.get(node)
        if copy is not None and copy.joined:
            return copy.base
        if is_alias(node):
            base: Any = node.args[0]
            return base
        return None

    def disappears(self, node: Node) -> bool:
        """Whether `node` is a split of which no piece is a copy."""
        pieces = self.pieces.get(node, [])
        return bool(pieces) and all(p.joined or p.stored for p in pieces)

    def _decide(self) -> None:
        for copy in self.copies.values():
            self._check_layout(copy)
        for copy in parts_to_store(self.copies.values(), self.memory, self.effects):
            copy.store()
        roots = self._place()
        self._refuse_written()
        self._refuse_conflicts(roots)
        self._refuse_partial_splits()
        self._reconsider()

    def _locate(self, copy: Copy) -> None:
        base = self.copies.get(copy.base)
        if base is not None and base.joined:
            copy.root, copy.byte_offset = base.root, base.byte_offset
            copy.is_located = base.is_located
        else:
            copy.root, copy.byte_offset = alias_root(copy.base), 0
            copy.is_located = True
        if copy.layout is not None:
            copy.byte_offset += copy.layout.byte_offset
        elif not copy.is_view:
            copy.is_located = False

    def parent(self, node: Node) -> Optional[Node]:
        """The node in whose memory `node` lies under the present verdicts."""
        base = self.alias_base(node)
        return self.effects.joins.get(node) if base is None else base

    def _add_copies(self, node: Node) -> None:
        family = family_of(overload_of(node))
        base = node.args[0] if node.args else None
        if family is None or not isinstance(base, Node) or _converts(node, base):
            return
        if family not in PIECE_FAMILY:
            self.copies[node] = Copy(node, node, base, family)
            return
        for piece in node.users:
            if piece.target is operator.getitem:
                copy = self.copies[piece] = Copy(piece, node, base, family)
                self.pieces.setdefault(node, []).append(copy)

    def _check_layout(self, copy: Copy) -> None:
        """Refuses what is no dense part of its base, wherever that is planned."""
        spec, base = copy.node.meta.get("spec"), copy.base.meta.get("spec")
        if not (is_dense_tensor(base) and is_dense_tensor(spec)):
            return copy.refuse(Reason.NO_SPEC)
        if (
            spec.is_dynamic_shape_tensor
            or base.is_dynamic_shape_tensor
            or not has_static_arguments(copy.source)
        ):
            if copy.is_view:
                copy.kernel = is_contiguous(base)
            elif self.emit_et_slice:
                copy.kernel = is_dense_at_run_time(copy.node, base)
            copy.joined, copy.reason = copy.kernel, Reason.DYNAMIC
        else:
            layouts = view_layouts(copy.source, base)
            index: Any = 0 if copy.node is copy.source else copy.node.args[1]
            if layouts and layouts[index].is_dense_as(spec):
                copy.layout = layouts[index]
                is_all = spec.nbytes() == base.nbytes()
                copy.is_whole = is_all and is_contiguous(base) and is_contiguous(spec)
            else:
                copy.refuse(Reason.NOT_DENSE)
        if copy.joined and any(user.op == "output" for user in copy.node.users):
            copy.refuse(Reason.OUTPUT)

    def _place(self) -> Dict[Node, Node]:
        """Refuses copies without a placed root; the root of each node in the graph."""
        roots: Dict[Node, Node] = {}
        for node in self.effects.order:
            copy = self.copies.get(node)
            if copy is not None and copy.joined:
                self._check_root(copy, roots[copy.base])
            parent = self.parent(node)
            roots[node] = node if parent is None else roots[parent]
            self._note_moved(node, parent)
        return roots

    def _note_moved(self, node: Node, parent: Optional[Node]) -> None:
        """Notes why an `et_slice` made `node`, or what `node` is derived from."""
        copy = self.copies.get(node)
        reason = None if parent is None else self._moved.get(parent)
        if copy is not None and copy.is_slice and copy.verdict == "kernel":
            reason = copy.reason
        if reason is not None:
            self._moved[node] = reason
            if copy is not None:
                copy.moved = True

    def _check_root(self, copy: Copy, root: Node) -> None:
        moved = self._moved.get(copy.base)
        reason = moved or self._safe_roots.why_unplaced(root)
        if reason is None:
            return
        if moved is None:
            if copy.is_view and reason in _VIEW_IS_ALIAS:
                return
            if copy.is_whole and reason is Reason.CONSTANT and root.meta["spec"].const:
                return
        by_et_slice = copy.is_slice and self.emit_et_slice
        can_be_placed = reason in _PLACED_AT_RUN_TIME or (
            reason is Reason.CONSTANT and (by_et_slice or moved is not None)
        )
        if can_be_placed and (copy.is_view or copy.is_whole or by_et_slice):
            copy.kernel, copy.reason = True, reason
        else:
            copy.refuse(reason)

    def _refuse_written(self) -> None:
        """A write to a copy must not reach its base, so what is written is copied."""
        for root in self.effects.writes:
            copy = self.copies.get(root)
            if copy is not None and copy.joined:
                copy.refuse(Reason.WRITTEN)

    def _refuse_conflicts(self, roots: Dict[Node, Node]) -> None:
        """Refuses copies that a write to their root overtakes.

        Walks backwards, so that all that is derived from a copy is decided before
        it. `roots` may join more than will be joined in the end; `_reconsider` gives
        back what that costs.
        """
        last_reads: Dict[Node, int] = {}
        for node in reversed(self.effects.order):
            copy = self.copies.get(node)
            last_read = self._last_read(node, last_reads)
            if copy is not None and copy.joined:
                if self._is_overtaken(roots[node], node, last_read):
                    copy.refuse(Reason.CONFLICTING_WRITE)
            self._extend(self.parent(node), last_read, last_reads)

    def _last_read(self, node: Node, derived: Dict[Node, int]) -> int:
        own = max((self.effects.order[user] for user in node.users), default=-1)
        return max(own, derived.get(node, -1))

    def _extend(
        self, node: Optional[Node], last_read: int, last_reads: Dict[Node, int]
    ) -> None:
        if node is not None:
            last_reads[node] = max(last_read, last_reads.get(node, -1))

    def _is_overtaken(self, root: Node, first: Node, last_read: int) -> bool:
        """Whether a write to `root` lands after `first`, not after `last_read`."""
        writes = self.effects.writes.get(root, [])
        after = bisect_right(writes, self.effects.order[first])
        return after < len(writes) and writes[after] <= last_read

    def _refuse_partial_splits(self) -> None:
        """A split whose kernel runs for one piece writes all: nothing is saved."""
        kept = {c.source for c in self.copies.values() if not c.joined}
        for copy in self.copies.values():
            indexed = all(u.target is operator.getitem for u in copy.source.users)
            is_piece = copy.node is not copy.source
            if is_piece and copy.joined and (copy.source in kept or not indexed):
                copy.refuse(Reason.SPLIT_STAYS)

    def _reconsider(self) -> None:
        """Takes back a conflict that only a copy refused meanwhile had brought."""
        retry = [
            copy
            for copy in self.copies.values()
            if copy.reason is Reason.CONFLICTING_WRITE
            and copy.layout is not None
            and copy.node is copy.source
        ]
        if not retry:
            return
        last_reads: Dict[Node, int] = {}
        for node in reversed(self.effects.order):
            self._extend(
                self.parent(node), self._last_read(node, last_reads), last_reads
            )
        for copy in retry:
            *aliases, root = self._bases_of(copy)
            last_read = self._last_read(copy.node, last_reads)
            if not self._is_overtaken(root, aliases[-1], last_read):
                copy.joined, copy.reason = True, Reason.SAFE
                self._check_root(copy, root)
            if copy.joined:
                for node in aliases:
                    self._extend(node, last_read, last_reads)

    def _bases_of(self, copy: Copy) -> List[Node]:
        """The copy, those among its bases that join theirs, and the root of all."""
        aliases, node = [copy.node], copy.base
        parent = self.parent(node)
        while parent is not None:
            if node in self.copies:
                aliases.append(node)
            node, parent = parent, self.parent(parent)
        return [*aliases, node]


def _converts(node: Node, base: Node) -> bool:
    """Whether `node` is one tensor of another dtype than `base`: new bytes, no copy."""
    specs = node.meta.get("spec"), base.meta.get("spec")
    dtypes = {spec.dtype for spec in specs if isinstance(spec, TensorSpec)}
    return len(dtypes) > 1
