# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""ExecuTorch's views of a lowered program: its text, its memory, its bytes."""

import json
import re
from pathlib import Path
from typing import Any, Dict, List, Optional, Set, Tuple

import pytest
import torch
from alias_testing import Fn, lower, nodes_of
from devtools_testing import ALIASES, delegated, Halves, INPUTS, instructions
from executorch.devtools import BundledProgram
from executorch.devtools.bundled_program.config import MethodTestCase, MethodTestSuite
from executorch.devtools.bundled_program.serialize import (
    serialize_from_bundled_program_to_flatbuffer,
)
from executorch.devtools.pte_tool.diff_pte import diff_pte
from executorch.exir import ExecutorchProgramManager, memory, to_edge
from executorch.exir._serialize._program import (
    deserialize_pte_binary,
    serialize_pte_binary,
)
from executorch.exir.print_program import inspect_node, pretty_print, print_program
from executorch.extension.pybindings.portable_lib import (
    _load_bundled_program_from_buffer,
)
from executorch.util.activation_memory_profiler import (
    create_tensor_allocation_info,
    generate_memory_trace,
)
from executorch_slice import disabled
from executorch_slice.compare import LoadedProgram


@pytest.fixture(scope="module")
def aliased() -> ExecutorchProgramManager:
    return to_edge(torch.export.export(Halves(), INPUTS)).to_executorch()


@pytest.fixture(scope="module")
def stock() -> ExecutorchProgramManager:
    with disabled():
        return to_edge(torch.export.export(Halves(), INPUTS)).to_executorch()


def test_print_program(
    aliased: ExecutorchProgramManager, capsys: pytest.CaptureFixture[str]
) -> None:
    program = aliased.executorch_program
    print_program(program, show_meminfo=True, mark_dynamic_shape_tensor=True)
    _, *printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(instructions(aliased))
    places = [list(map(int, re.findall(r"Tm1\.(\d+)", line))) for line in printed]
    (_, sin, _), (top, *_), (bottom, *_), *_ = places
    assert (top, bottom) == (sin, sin + 64)
    pretty_print(program)
    assert "AllocationDetails" in capsys.readouterr().out


def test_inspect_node(aliased: ExecutorchProgramManager) -> None:
    graph_module = aliased.exported_program().graph_module
    for node in nodes_of(graph_module, memory.slice):
        shown = inspect_node(graph_module.graph, node)
        (line,) = (line for line in shown.splitlines() if line.startswith("-->"))
        assert f"%{node.name} " in line


def allocations(manager: ExecutorchProgramManager) -> List[Dict[str, Tuple[int, int]]]:
    """At each node, the tensors that are alive: their offset and bytes by name."""
    timeline: List[Optional[Any]] = create_tensor_allocation_info(
        manager.exported_program().graph
    )
    return [
        {a.name: (a.memory_offset, a.size_bytes) for a in moment.allocations}
        for moment in timeline
        if moment is not None
    ]


def test_memory_profiler(
    stock: ExecutorchProgramManager, aliased: ExecutorchProgramManager
) -> None:
    """An alias has no bytes of its own; its root is alive until it has been read."""
    ours, theirs = allocations(aliased), allocations(stock)

    def names(moments: List[Dict[str, Any]]) -> Set[str]:
        return {name for moment in moments for name in moment}

    assert names(theirs) - names(ours) == set(ALIASES)
    assert names(ours) < names(theirs)
    arena = aliased.executorch_program.execution_plan[0]
    ends = [start + size for moment in ours for start, size in moment.values()]
    assert max(ends) <= arena.non_const_buffer_sizes[1]
    graph_module = aliased.exported_program().graph_module
    at = {node.name: i for i, node in enumerate(graph_module.graph.nodes)}
    for alias in nodes_of(graph_module, memory.slice):
        for reader in alias.users:
            assert "aten_sin_default" in ours[at[reader.name]]


@pytest.mark.parametrize("offsets", [False, True])
def test_memory_trace(
    aliased: ExecutorchProgramManager, tmp_path: Path, offsets: bool
) -> None:
    path = tmp_path / "trace.json"
    generate_memory_trace(aliased, str(path), enable_memory_offsets=offsets)
    events = json.loads(path.read_text())["traceEvents"]
    alive = allocations(aliased)
    assert len(events) == sum(map(len, alive))
    if offsets:
        found = {(e["name"], (e["ts"], e["dur"])) for e in events}
        assert found == {item for moment in alive for item in moment.items()}


def test_memory_trace_of_delegates_alone(tmp_path: Path) -> None:
    """No node of the graph allocates, and yet its memory is planned."""
    manager = delegated()
    assert not nodes_of(manager.exported_program().graph_module, memory.alloc)
    generate_memory_trace(manager, str(tmp_path / "trace.json"))
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_memory_trace_without_a_plan(tmp_path: Path) -> None:
    manager = lower(Fn(lambda x: x.sin()), INPUTS)
    for node in nodes_of(manager.exported_program().graph_module, memory.alloc):
        node.target = torch.empty
    with pytest.raises(ValueError, match="does not have memory planning"):
        generate_memory_trace(manager, str(tmp_path / "trace.json"))


@pytest.mark.parametrize("wrong", [False, True])
def test_bundled_program(aliased: ExecutorchProgramManager, wrong: bool) -> None:
    outputs = [one + wrong for one in Halves()(*INPUTS)]
    cases = [MethodTestCase(inputs=list(INPUTS), expected_outputs=outputs)]
    suites = [MethodTestSuite(method_name="forward", test_cases=cases)]
    bundled = serialize_from_bundled_program_to_flatbuffer(
        BundledProgram(aliased, suites)
    )
    bundle = _load_bundled_program_from_buffer(bundled)
    if wrong:
        with pytest.raises(RuntimeError):
            bundle.verify_result_with_bundled_expected_output("forward", 0)
    else:
        bundle.verify_result_with_bundled_expected_output("forward", 0)


def test_pte_round_trip(aliased: ExecutorchProgramManager) -> None:
    file = deserialize_pte_binary(aliased.buffer)
    ours = aliased.executorch_program
    assert file.program.execution_plan == ours.execution_plan
    again = bytes(serialize_pte_binary(file, extract_delegate_segments=True))
    assert deserialize_pte_binary(again).program == file.program
    got, want = LoadedProgram(again)(*INPUTS), LoadedProgram(aliased)(*INPUTS)
    assert all(map(torch.equal, got, want))


def test_diff_of_two_programs(
    stock: ExecutorchProgramManager, aliased: ExecutorchProgramManager
) -> None:
    result = diff_pte(stock.buffer, aliased.buffer)
    (plan,) = result.plan_diffs
    assert result.error is None
    assert plan.operators_only_in_a == ["aten::slice_copy.Tensor_out"]
    assert not plan.operators_only_in_b
