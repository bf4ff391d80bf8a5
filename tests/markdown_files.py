# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""The repository's Markdown files, taken apart."""

import re
from pathlib import Path
from typing import List

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def code_blocks(path: Path, language: str) -> List[str]:
    """The code of each fenced block in `language`, in order."""
    blocks = _BLOCK.findall(path.read_text())
    return [code for name, code in blocks if name == language]


def prose(path: Path) -> str:
    """The text outside of fenced blocks."""
    return _BLOCK.sub("", path.read_text())
