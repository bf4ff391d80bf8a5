# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""The table of seams holds all that an installed ExecuTorch binds by name."""

import ast
from pathlib import Path
from typing import Iterator, Set, Tuple

import executorch.exir
import pytest
import torch
from alias_testing import Fn, lower
from executorch_slice import _activation, seams
from executorch_slice.seams import Seam, SEAMS

PACKAGE = Path(executorch.exir.__file__).parents[1]
TESTS = {"test", "tests"}
ROWS = Fn(lambda x: (x * 2)[1:3] + 1)


def imports() -> Iterator[Tuple[str, str, str]]:
    """Each `from module import name` in the wheel, with the module it stands in."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        if TESTS & set(parts):
            continue
        text = path.read_text(errors="ignore")
        if not any(seam.attribute in text for seam in SEAMS):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    yield ".".join(parts), node.module, alias.name


BINDINGS = list(imports())


@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.attribute)
def test_bindings_are_complete(seam: Seam) -> None:
    if seam.action not in ("replace", "switch"):
        return
    found: Set[str] = {
        module
        for module, source, name in BINDINGS
        if (source, name) == (seam.module, seam.attribute)
    }
    assert found == set(seam.bindings)


@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.attribute)
def test_seam_says_why_and_until(seam: Seam) -> None:
    assert seam.why and seam.until
    assert seam.trigger in _activation.TRIGGERS


def test_profiler_counts_an_alias_with_its_root() -> None:
    """It compares targets with `memory.view`, so it meets the other alias ops too."""
    from executorch.util.activation_memory_profiler import create_tensor_allocation_info

    manager = lower(ROWS, (torch.ones(4, 6),))
    timeline = create_tensor_allocation_info(manager.exported_program().graph)
    names = {a.name for moment in timeline if moment for a in moment.allocations}
    assert not any("slice" in name for name in names)
    assert any("mul" in name for name in names)


def test_join_is_idempotent() -> None:
    from executorch.exir import memory_planning
    from executorch.exir.program import _program

    before = _program.pre_memory_planning_passes, memory_planning.get_node_tensor_specs
    seams.join(_activation.LOWERING)
    after = _program.pre_memory_planning_passes, memory_planning.get_node_tensor_specs
    assert before == after


def test_alias_program_can_be_saved(tmp_path: Path) -> None:
    from executorch.exir import load, memory, save

    program = lower(ROWS, (torch.ones(4, 6),)).exported_program()
    path = str(tmp_path / "rows.pt2")
    save(program, path)
    loaded = load(path)
    targets = [node.target for node in loaded.graph.nodes]
    assert memory.slice in targets
