# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""What the analysis says of each copy: alias or copy, and why."""

from dataclasses import asdict, dataclass
from enum import Enum
from html import escape
from typing import Any, Dict, get_args, List, Literal, Optional, Tuple

Verdict = Literal["alias", "kernel", "constant", "copy"]


class Reason(Enum):
    """Why a copy is an alias or stays one. Names are stable; `str()` explains."""

    SAFE = "its bytes already lie in its base, and stay unchanged while they are read"
    CONFLICTING_WRITE = "its base is overwritten before its last reader has run"
    CONSTANT = "its base is a constant, and a program cannot point into a constant"
    CONTROL_FLOW_OPERAND = "its base is bound to an outer value when the branch runs"
    CONTROL_FLOW_RESULT = "its base is a control flow result, which moves at run time"
    CUSTOM_PLANNER = "the memory planner is not ExecuTorch's own and promises nothing"
    DELEGATE_OUTPUT = "its base comes from a delegate that may move its outputs"
    DEVICE = "its base is not in CPU memory"
    DYNAMIC = "its size, its place or its base's size is known only at run time"
    MISALIGNED = "its offset in the arena is not a multiple of min_alignment"
    NOT_DENSE = "its elements do not lie in its base together and in its own order"
    NO_SPEC = "it or its base has no dense tensor spec"
    OUTPUT = "the method returns it, and callers may replace an output's memory"
    SPLIT_STAYS = "another piece of the split needs a copy, so its kernel runs anyway"
    STORED = "nothing else reads its base, a constant: the program holds it instead"
    SWITCHED_OFF = "aliases are switched off in the config"
    UNKNOWN_BASE = "its base comes from an op whose memory is not planned"
    UNPLANNED_BUFFER = "its base is a mutable buffer that is not memory planned"
    UNPLANNED_INPUT = "its base is a graph input that is not memory planned"
    UNPLANNED_OUTPUT = "its base is a graph output that is not memory planned"
    WOULD_GROW = "to keep its base alive for it would grow the arena"
    WRITTEN = "it is written in place, which would change its base too"

    def __str__(self) -> str:
        return self.value


FREE = frozenset({Reason.SAFE, Reason.STORED})  # no copy stays for these


@dataclass(frozen=True)
class Decision:
    """What becomes of one copy.

    Attributes:
        method: name of the method that holds it.
        node: name of the FX node; behind the names of the submodules that hold it.
        op: the copy's overload, e.g. ``aten.slice_copy.Tensor``.
        verdict: "alias", no instruction; "kernel", a runtime instruction that moves
            no data; "constant", a constant of its own instead of its base; "copy", the
            kernel it always was.
        reason: why.
        nbytes: bytes of the result, at the upper bound of dynamic sizes.
        base: name of the node whose memory the result lies in, or is copied from.
        byte_offset: bytes from the start of `base`; None where it is not known or
            the result does not lie together.
        growth: bytes by which the alias would grow the arenas, where that is why.
        source: line of the model that made the copy, as ``model.py:12``; empty where
            the exported program does not tell.
    """

    method: str
    node: str
    op: str
    verdict: Verdict
    reason: Reason
    nbytes: int
    base: str
    byte_offset: Optional[int]
    growth: int = 0
    source: str = ""

    @property
    def explanation(self) -> str:
        """The reason, with its number of bytes."""
        return f"{self.reason}{f' by {self.growth:,} bytes' if self.growth else ''}"

    def __str__(self) -> str:
        what = f"{self.method}: {self.node} ({self.op})"
        return f"{what}: {self.verdict}: {self.explanation}"

    def to_dict(self) -> Dict[str, Any]:
        """All fields as JSON types, the reason by its name, and its explanation."""
        fields = {**asdict(self), "reason": self.reason.name}
        return {**fields, "explanation": self.explanation}


class Decisions(List[Decision]):
    """A list of decisions that prints as a table, in a notebook too."""

    SHOWN = 40  # rows; those left out are counted

    def totals(self) -> Dict[str, Dict[str, int]]:
        """For each verdict, how many copies have it, and their bytes."""
        return {
            verdict: {
                "count": sum(d.verdict == verdict for d in self),
                "bytes": sum(d.nbytes for d in self if d.verdict == verdict),
            }
            for verdict in get_args(Verdict)
        }

    def to_dict(self) -> Dict[str, Any]:
        """The decisions and their totals, as JSON types."""
        return {"decisions": [d.to_dict() for d in self], "totals": self.totals()}

    def summary(self) -> str:
        """One line, as ``2 copies: 1 alias (64 bytes), 1 copy (32 bytes)``."""
        parts = [
            f"{total['count']:,} {verdict} ({total['bytes']:,} bytes)"
            for verdict, total in self.totals().items()
            if total["count"]
        ]
        what = "1 copy" if len(self) == 1 else f"{len(self):,} copies"
        return f"{what}: {', '.join(parts)}" if parts else what

    def __repr__(self) -> str:
        rows = [_HEADINGS, *map(_cells, self[: self.SHOWN])]
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([*(lines if self else ()), *self._left_out(), self.summary()])

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr title="{escape(d.explanation)}">{_html_cells("td", _cells(d))}</tr>'
            for d in self[: self.SHOWN]
        )
        head = _html_cells("th", _HEADINGS)
        notes = "<br>".join(map(escape, (*self._left_out(), self.summary())))
        return (
            f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
            f"<p>{notes}</p>"
        )

    def _left_out(self) -> List[str]:
        more = len(self) - self.SHOWN
        return [f"... and {more:,} more"] if more > 0 else []


_HEADINGS = ("method", "node", "verdict", "reason", "bytes", "source")


def _cells(decision: Decision) -> Tuple[str, ...]:
    d = decision
    return d.method, d.node, d.verdict, d.reason.name, f"{d.nbytes:,}", d.source


def _html_cells(tag: str, cells: Tuple[str, ...]) -> str:
    return "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells)
