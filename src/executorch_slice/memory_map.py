# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Pictures of arenas: instructions across, bytes up, each tensor a box."""

import io
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Optional, TYPE_CHECKING

from executorch_slice.arena_layout import Arena, PlannedTensor
from executorch_slice.command_files import writing
from executorch_slice.cost import SLICE_FAMILY, VIEW_FAMILY
from executorch_slice.exit_codes import CommandError, ExitCode

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".html", ".svg", ".png")
# Of the palette of Okabe and Ito, which colour-blind people can tell apart.
TENSOR, ALIAS, COPY = "#8ecdf2", "#e69f00", "#cc79a7"
LEGEND = {"tensor": TENSOR, "alias, in its root": ALIAS, "copy that remains": COPY}
INSET = 0.12  # instructions by which an alias is narrower, for each that it lies in
POINTS_PER_INCH = 72
FONT = 7  # points
GLYPH = 0.62 * FONT  # points that a letter is wide, at most on average
LINE = 1.3 * FONT  # points
MARGIN = 0.75  # inches around each panel
_STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "map", "hatch.linewidth": 0.3}
SVG = "http://www.w3.org/2000/svg"


class Box(NamedTuple):
    """A tensor's box: instructions from `left` to `right`, bytes `bottom` to `top`."""

    tensor: PlannedTensor
    left: float
    right: float
    bottom: int
    top: int


class Label(NamedTuple):
    """A rectangle of text, in points."""

    left: float
    bottom: float
    width: float
    height: float

    def overlaps(self, other: "Label") -> bool:
        return (
            self.left < other.left + other.width
            and other.left < self.left + self.width
            and self.bottom < other.bottom + other.height
            and other.bottom < self.bottom + self.height
        )


def check_can_draw(out: Optional[Path]) -> None:
    """Raises CommandError where `draw` cannot draw to `out`; None is not drawn to."""
    if out is None:
        return
    if out.suffix not in FORMATS:
        message = (
            f"{out} ends neither in {', '.join(FORMATS[:-1])} nor in {FORMATS[-1]}"
        )
        raise CommandError(ExitCode.USAGE, message)
    if find_spec("matplotlib") is None:
        message = "pictures need matplotlib: pip install 'executorch-slice[pictures]'"
        raise CommandError(ExitCode.USAGE, message)


def draw(pictures: Mapping[str, list[Arena]], out: Path) -> None:
    """Draws arenas of one or more programs side by side, one row for each arena.

    Args:
        pictures: the arenas of each program, by title.
        out: of one of the `FORMATS`. An `.html` is one file that opens offline.

    Raises:
        CommandError: `out` cannot be written.
    """
    from matplotlib import rc_context

    with writing(out), rc_context(_STYLE):
        figure, details = _figure(pictures)
        if out.suffix == ".png":
            figure.savefig(out, dpi=100)
            return
        svg = _with_details(figure, details)
        if out.suffix == ".svg":
            text = ElementTree.tostring(svg, encoding="unicode")
        else:
            text = _page(" / ".join(pictures), svg)
        out.write_text(text, encoding="utf-8")


def boxes(arena: Arena) -> list[Box]:
    """The boxes of an arena's tensors, each root before its aliases."""
    aliases: dict[int, list[PlannedTensor]] = {}
    for t in arena.tensors:
        if t.root is not None:
            aliases.setdefault(t.root, []).append(t)
    found = []
    for root in (t for t in arena.tensors if t.root is None):
        found.append(_box(root, 0))
        inside = sorted(aliases.get(root.value, ()), key=lambda t: (-t.nbytes, t.first))
        for at, alias in enumerate(inside):
            depth = sum(_overlap(alias, larger) for larger in inside[:at])
            found.append(_box(alias, min(1 + depth, 3)))
    return found


def _box(tensor: PlannedTensor, depth: int) -> Box:
    inset = depth * INSET
    left, right = tensor.first + inset, tensor.last + 1 - inset
    return Box(tensor, left, right, tensor.byte_offset, tensor.end)


def _overlap(one: PlannedTensor, other: PlannedTensor) -> bool:
    return (
        one.first <= other.last
        and other.first <= one.last
        and one.byte_offset < other.end
        and other.byte_offset < one.end
    )


def _figure(pictures: Mapping[str, list[Arena]]) -> "tuple[Figure, dict[str, str]]":
    """A figure of all arenas, and the details of each box by the id of its group."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    keys = list(
        dict.fromkeys((a.method, a.index) for p in pictures.values() for a in p)
    )
    longest = max((a.instructions for p in pictures.values() for a in p), default=1)
    width = min(max(0.14 * longest, 9.0), 60.0)
    height = min(max(0.03 * longest, 6.0), 9.0)
    columns, rows = len(pictures), max(len(keys), 1)
    size = (width + MARGIN) * columns + MARGIN, (height + MARGIN) * rows + MARGIN
    figure = Figure(figsize=size)
    details: dict[str, str] = {}
    for column, (title, arenas) in enumerate(pictures.items()):
        by_key = {(a.method, a.index): a for a in arenas}
        for row, key in enumerate(keys):
            left = (MARGIN + column * (width + MARGIN)) / size[0]
            bottom = (MARGIN + (rows - 1 - row) * (height + MARGIN)) / size[1]
            place = left, bottom, width / size[0], (height - MARGIN / 2) / size[1]
            axes = figure.add_axes(place)
            tallest = max(
                a.nbytes
                for p in pictures.values()
                for a in p
                if (a.method, a.index) == key
            )
            axes.set_ylim(0, 1.08 * tallest)
            axes.set_xlim(0, max(longest, 1))
            if key in by_key:
                _draw_arena(axes, by_key[key], title, f"{column}-{row}", details)
    handles = [
        Patch(facecolor=colour, edgecolor="black", label=name, hatch=_hatch(colour))
        for name, colour in LEGEND.items()
    ]
    figure.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(MARGIN / size[0], 1 - 0.1 / size[1]),
        ncols=3,
        fontsize=8,
        frameon=False,
        borderaxespad=0,
    )
    return figure, details


def _hatch(colour: str) -> Optional[str]:
    return "///" if colour == COPY else None


def _draw_arena(
    axes: "Axes", arena: Arena, title: str, group: str, details: dict[str, str]
) -> None:
    from matplotlib.patches import Rectangle

    drawn = boxes(arena)
    for at, box in enumerate(drawn):
        colour = _colour(box.tensor)
        details[f"{group}-{at}"] = _describe(box.tensor, arena)
        axes.add_patch(
            Rectangle(
                (box.left, box.bottom),
                box.right - box.left,
                box.top - box.bottom,
                facecolor=colour,
                edgecolor="black",
                hatch=_hatch(colour),
                linewidth=0.6,
                gid=f"{group}-{at}",
            )
        )
    for name, label, rotation in labels(axes, drawn):
        axes.annotate(
            name,
            (label.left, label.bottom),
            xycoords="axes points",
            fontsize=FONT,
            rotation=rotation,
            bbox={"facecolor": "white", "alpha": 0.8, "pad": 0.5, "linewidth": 0},
        )
    peak = arena.peak_instruction + 0.5
    axes.axhline(arena.nbytes, color="black", linestyle="--", linewidth=1)
    axes.axvline(peak, color="black", linestyle=":", linewidth=1)
    axes.plot([peak], [arena.nbytes], "kv", clip_on=False)
    axes.set_xlabel("instruction", fontsize=8)
    axes.set_ylabel("bytes", fontsize=8)
    axes.tick_params(labelsize=FONT)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_title(
        f"{title}: {arena.method}, arena {arena.index}:"
        f" {arena.nbytes:,} bytes (dashed)\n"
        f"peak: {arena.peak_bytes:,} bytes in use at instruction"
        f" {arena.peak_instruction:,} of {arena.instructions:,} (dotted)",
        fontsize=9,
        loc="left",
    )


def _colour(tensor: PlannedTensor) -> str:
    if tensor.root is not None:
        return ALIAS
    return COPY if tensor.writer in SLICE_FAMILY | VIEW_FAMILY else TENSOR


def _describe(tensor: PlannedTensor, arena: Arena) -> str:
    roots = {t.value: t.name for t in arena.tensors}
    lines = [
        tensor.name,
        f"value {tensor.value}, {tensor.writer or 'no instruction writes it'}",
        f"{tensor.dtype}[{', '.join(map(str, tensor.sizes))}], {tensor.nbytes:,} bytes",
        f"bytes {tensor.byte_offset:,} to {tensor.end:,}",
        f"instructions {tensor.first} to {tensor.last}",
    ]
    if tensor.root is not None:
        lines.append(f"alias of {roots[tensor.root]}")
    return "\n".join(lines)


def labels(axes: "Axes", drawn: list[Box]) -> Iterator[tuple[str, Label, int]]:
    """Names of tensors, where they fit, and the degrees by which they are turned.

    A name stands inside of its box and not on another one. It is short where it does
    not fit in full, and left out where it does not fit at all. Aliases choose first.
    """
    points = POINTS_PER_INCH / axes.figure.dpi
    to_points = axes.transData + axes.transAxes.inverted()
    box_size = axes.get_window_extent()
    across, up = box_size.width * points, box_size.height * points

    def area(box: Box) -> Label:
        (x0, y0), (x1, y1) = to_points.transform(
            [(box.left, box.bottom), (box.right, box.top)]
        )
        return Label(x0 * across, y0 * up, (x1 - x0) * across, (y1 - y0) * up)

    taken: dict[int, list[Label]] = {}
    aliased: dict[int, list[Label]] = {}
    for box in sorted(drawn, key=lambda box: box.tensor.root is None):
        root = box.tensor.root
        key = box.tensor.value if root is None else root
        others = taken.setdefault(key, [])
        if root is None:
            others += aliased.get(key, ())
        inside = area(box)
        for name in (box.tensor.name, _short(box.tensor.name)):
            found = _free_place(name, inside, others)
            if found is not None:
                yield name, *found
                others.append(found[0])
                break
        if root is not None:
            aliased.setdefault(root, []).append(inside)


def _short(name: str) -> str:
    """`name` without what most names of nodes have in common."""
    return re.sub(r"^aten_|_copy|_default|_tensor", "", name, flags=re.IGNORECASE)


def _free_place(
    name: str, inside: Label, taken: list[Label]
) -> Optional[tuple[Label, int]]:
    """A place for `name` within `inside`, and the degrees by which it is turned."""
    length = GLYPH * len(name)
    if length + 4 <= inside.width and inside.height >= LINE:
        steps = min(int(inside.height // LINE), 40)
        for step in range(1, steps + 1):
            bottom = inside.bottom + inside.height - step * LINE + 2
            label = Label(inside.left + 2, bottom, length, LINE)
            if not any(map(label.overlaps, taken)):
                return label, 0
    if length + 4 <= inside.height and inside.width >= LINE:
        steps = min(int(inside.width // LINE), 40)
        for step in range(steps):
            left = inside.left + step * LINE + 1
            label = Label(left, inside.bottom + 2, LINE, length)
            if not any(map(label.overlaps, taken)):
                return label, 90
    return None


def _with_details(figure: "Figure", details: Mapping[str, str]) -> ElementTree.Element:
    """The figure as SVG, where each box says what it is when one points at it."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    ElementTree.register_namespace("", SVG)
    svg = ElementTree.fromstring(file.getvalue())
    for metadata in svg.findall(f"{{{SVG}}}metadata"):
        svg.remove(metadata)
    for group in svg.iter(f"{{{SVG}}}g"):
        text = details.get(group.get("id", ""))
        if text is not None:
            group.set("class", "box")
            title = ElementTree.Element(f"{{{SVG}}}title")
            title.text = text
            group.insert(0, title)
    return svg


def _page(title: str, svg: ElementTree.Element) -> str:
    for element in svg.iter():
        element.tag = element.tag.rpartition("}")[2]
        for name in list(element.attrib):
            if name.startswith("{"):
                element.set(name.rpartition("}")[2], element.attrib.pop(name))
    picture = ElementTree.tostring(svg, encoding="unicode")
    return _PAGE.format(title=escape(title), picture=picture)


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Memory map: {title}</title>
<style>
body {{ margin: 0 0 9em; font-family: sans-serif; background: white; }}
svg {{ max-width: none; font-family: sans-serif; }}
.box:hover path {{ stroke-width: 3 !important; }}
#details {{ position: fixed; bottom: 0; left: 0; right: 0; margin: 0; padding: .5em 1em;
  height: 7em; background: white; border-top: 1px solid black; white-space: pre;
  overflow: auto; font-family: monospace; }}
</style>
</head>
<body>
{picture}
<pre id="details">Point at a box.</pre>
<script>
const details = document.getElementById("details");
for (const box of document.querySelectorAll(".box"))
  box.addEventListener("mouseenter", () => {{
    details.textContent = box.querySelector("title").textContent;
  }});
</script>
</body>
</html>
"""
