# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""The repository's Markdown files, taken apart."""

import re
from pathlib import Path
from typing import Iterator, List, Set

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
FILES = [
    ROOT / "README.md",
    *sorted(DOCS.glob("*.md")),
    ROOT / "examples/cpp/README.md",
]

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CELLS = re.compile(r"(?<!\\)\|")


def code_blocks(path: Path, language: str) -> List[str]:
    """The code of each fenced block in `language`, in order."""
    blocks = _BLOCK.findall(path.read_text())
    return [code for name, code in blocks if name == language]


def shell_commands(path: Path) -> List[str]:
    """The commands of the `sh` blocks, one a line, without comments."""
    text = "".join(code_blocks(path, "sh")).replace("\\\n", " ")
    lines = [re.sub(r"(^|\s)#.*", "", line) for line in text.splitlines()]
    return [" ".join(line.split()) for line in lines if line.strip()]


def prose(path: Path) -> str:
    """The text outside of fenced blocks."""
    return _BLOCK.sub("", path.read_text())


def inline_code(text: str) -> List[str]:
    """What stands between backticks."""
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text)]


def links(path: Path) -> List[str]:
    """Targets of links and pictures."""
    return _LINK.findall(prose(path))


def anchors(path: Path) -> Set[str]:
    """What a link may say behind `#`: each heading, as GitHub spells it."""
    headings = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in plain}


def table_rows(path: Path, heading: str) -> Iterator[List[str]]:
    """The cells of the table whose first heading is `heading`, row by row."""
    lines = prose(path).splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith(f"| {heading} |")]
    for line in lines[starts[0] + 2 :]:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in _CELLS.split(line)[1:-1]]
