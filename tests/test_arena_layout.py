# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Where tensors of lowered programs lie, as files tell it, and how that is drawn."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import List

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import (
    ExecutorchProgramManager,
    to_edge,
    to_edge_transform_and_lower,
)
from executorch_slice import decisions
from executorch_slice.arena_layout import Arena, arenas
from executorch_slice.compare import lower, lower_stock
from executorch_slice.demo_models import gru
from executorch_slice.lowering import program_arenas
from executorch_slice.memory_map import boxes, draw, labels
from torch import nn, Tensor


class State(nn.Module):
    """A slice of a mutable buffer is read before the buffer is written."""

    state: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(4, 8))

    def forward(self, x: Tensor) -> Tensor:
        seen = self.state[1:3].sin()
        self.state.add_(x)
        return seen


@pytest.fixture(scope="module")
def grus() -> List[ExecutorchProgramManager]:
    module, inputs = gru()
    return lowered(module, *inputs)


def known_and_read(manager: ExecutorchProgramManager) -> List[List[Arena]]:
    """Arenas as the graph names them, and as anybody reads them from the file."""
    plans = manager.executorch_program.execution_plan
    return [program_arenas(manager), [a for plan in plans for a in arenas(plan, {})]]


def assert_tensors_are_apart(found: List[Arena]) -> None:
    """No two tensors of their own are in use at once in one byte."""
    for arena in found:
        assert arena.peak_bytes <= arena.nbytes
        roots = [t for t in arena.tensors if t.root is None]
        for one, other in combinations(roots, 2):
            if one.first <= other.last and other.first <= one.last:
                assert one.end <= other.byte_offset or other.end <= one.byte_offset


def lowered(module: nn.Module, *inputs: Tensor) -> List[ExecutorchProgramManager]:
    edge = to_edge(torch.export.export(module, inputs))
    return [lower(edge), lower_stock(edge)]


def test_what_is_in_use_at_once_lies_apart(
    grus: List[ExecutorchProgramManager],
) -> None:
    for manager in grus:
        for found in known_and_read(manager):
            assert_tensors_are_apart(found)


def test_names_are_those_of_nodes(grus: List[ExecutorchProgramManager]) -> None:
    (manager, _) = grus
    (arena,) = program_arenas(manager)
    names = {node.name for node in manager.exported_program().graph.nodes}
    assert {t.name.partition(".")[0] for t in arena.tensors} <= names
    aliases = {t.name for t in arena.tensors if t.root is not None}
    assert aliases <= {d.node for d in decisions(manager) if d.verdict == "alias"}
    assert len(aliases) == 84
    offsets = {d.node: d.byte_offset for d in decisions(manager)}
    roots = {t.value: t for t in arena.tensors}
    for t in arena.tensors:
        if t.root is not None:
            assert t.byte_offset - roots[t.root].byte_offset == offsets[t.name]


def test_state_is_in_use_all_the_time() -> None:
    for found in known_and_read(lowered(State(), torch.randn(4, 8))[0]):
        (arena,) = found
        buffers = [t for t in arena.tensors if t.sizes == (4, 8) and t.last]
        state = max(buffers, key=lambda t: t.last - t.first)
        assert (state.first, state.last) == (0, arena.instructions - 1)
        assert_tensors_are_apart(found)


def test_outputs_of_delegates_are_no_aliases() -> None:
    exported = torch.export.export(gru()[0], (torch.randn(1, 3, 40),))
    edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
    manager = lower(edge)
    for found in known_and_read(manager):
        assert_tensors_are_apart(found)
    (arena,) = program_arenas(manager)
    aliases = {t.name for t in arena.tensors if t.root is not None}
    assert len(aliases) >= 9
    assert aliases <= {d.node for d in decisions(manager) if d.verdict == "alias"}
    assert any(t.writer == "XnnpackBackend" for t in arena.tensors)


def test_boxes_of_aliases_lie_in_their_roots(
    grus: List[ExecutorchProgramManager],
) -> None:
    (arena,) = program_arenas(grus[0])
    found = {box.tensor.value: box for box in boxes(arena)}
    assert len(found) == len(arena.tensors)
    for box in found.values():
        assert box.left < box.right
        if box.tensor.root is not None:
            root = found[box.tensor.root]
            assert root.left < box.left and box.right < root.right
            assert root.bottom <= box.bottom and box.top <= root.top


def test_labels_do_not_overlap(grus: List[ExecutorchProgramManager]) -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure(figsize=(30, 6))
    (arena,) = program_arenas(grus[0])
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, arena.instructions)
    axes.set_ylim(0, arena.nbytes)
    placed = [label for _, label, _ in labels(axes, boxes(arena))]
    assert len(placed) > 20
    assert not any(one.overlaps(other) for one, other in combinations(placed, 2))


def test_a_map_of_a_thousand_instructions(
    grus: List[ExecutorchProgramManager], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    (arena,) = program_arenas(grus[0])
    times = 6
    long = [
        replace(
            t,
            value=t.value + copy * 10_000,
            root=t.root if t.root is None else t.root + copy * 10_000,
            first=t.first + copy * arena.instructions,
            last=t.last + copy * arena.instructions,
        )
        for copy in range(times)
        for t in arena.tensors[:100]
    ]
    size = times * arena.instructions
    draw(
        {"long": [replace(arena, instructions=size, tensors=tuple(long))]},
        tmp_path / "map.svg",
    )
    assert (tmp_path / "map.svg").read_text().count("<title>") == len(long)
