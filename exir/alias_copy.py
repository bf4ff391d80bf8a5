# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""A copy that the analysis decides about."""

from dataclasses import dataclass, field
from typing import Optional

from executorch_slice.exir.alias_decision import Reason, Verdict
from executorch_slice.exir.alias_layout import (
    Layout,
    PIECE_FAMILY,
    SLICE_FAMILY,
    VIEW_FAMILY,
)
from torch.fx import Node


@dataclass
class Copy:
    """A copy that could be an alias, and what becomes of it.

    Attributes:
        node: the node that holds the result: the copy itself, or a piece of a split.
        source: the node that copies; a split is the source of all its pieces.
        base: what is copied from.
        family: the op's name without "_copy".
        layout: where the result lies in `base`; None where its size or place is not
            known, or it does not lie together.
        is_whole: whether it is all of `base`, and both are contiguous.
        joined: whether it lies in `base`; `kernel` says that an instruction puts it
            there when the program runs.
        moved: whether the address is that of an `et_slice` or `et_select`, so that
            no plan tells it.
        stored: whether the program holds it, a part of a constant, as a constant.
        reason, growth: as in Decision.
        root, byte_offset: the node whose memory planning will place, and where the
            result starts in it; or what is copied from, where it stays a copy.
        is_located: whether `byte_offset` is known at lowering.
    """

    node: Node
    source: Node
    base: Node
    family: str
    layout: Optional[Layout] = None
    is_whole: bool = False
    joined: bool = True
    kernel: bool = False
    moved: bool = False
    stored: bool = False
    reason: Reason = Reason.SAFE
    root: Node = field(init=False)
    byte_offset: int = 0
    is_located: bool = True
    growth: int = 0

    def __post_init__(self) -> None:
        self.root = self.base

    @property
    def is_view(self) -> bool:
        return self.family in VIEW_FAMILY

    @property
    def is_slice(self) -> bool:
        """Whether an `et_slice` or an `et_select` could make it."""
        return self.family in SLICE_FAMILY | PIECE_FAMILY and not self.is_whole

    @property
    def verdict(self) -> Verdict:
        if not self.joined:
            return "constant" if self.stored else "copy"
        return "kernel" if self.kernel else "alias"

    def refuse(self, reason: Reason, growth: int = 0) -> None:
        self.joined, self.reason, self.growth = False, reason, growth

    def store(self) -> None:
        """Makes it a constant of its own, which has no memory to be planned."""
        self.refuse(Reason.STORED)
        self.stored = True
        self.node.meta["spec"].const = True
