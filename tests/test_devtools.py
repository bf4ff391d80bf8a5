# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""ExecuTorch's devtools on programs with aliases, beside stock's of the same model."""

import copy
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest
import torch
from alias_testing import Fn, lower
from devtools_testing import ALIASES, delegated, Halves, INPUTS, instructions
from executorch.devtools import ETRecord, generate_etrecord, Inspector, parse_etrecord
from executorch.devtools.intermediate_output_tap import tap_compare
from executorch.exir import ExecutorchBackendConfig, ExecutorchProgramManager, to_edge
from executorch.exir.passes import MemoryPlanningPass
from executorch.extension.pybindings.portable_lib import (
    _load_for_executorch_from_buffer,
)
from executorch_slice import (
    AliasConfig,
    decisions,
    disabled,
    ExecutorchBackendConfig as AliasBackendConfig,
)
from markdown_files import code_blocks, DOCS
from torch import nn, Tensor

BUFFER_FOR_OUTPUTS = 1 << 16  # bytes, for all tensors of one run


class Lowered:
    """One lowering of `Halves`, with what the devtools make of it."""

    def __init__(self, folder: Path) -> None:
        self.exported = torch.export.export(Halves(), INPUTS)
        edge = to_edge(self.exported, generate_etrecord=True)
        self.edge = copy.deepcopy(edge)
        self.manager = edge.to_executorch()
        self.folder = folder

    @property
    def handles(self) -> Dict[int, Any]:
        """The debug handle of each instruction."""
        found: Dict[int, Any] = self.manager.debug_handle_map["forward"]
        return found

    def record(self, generated: bool = True) -> str:
        """Saves an ETRecord: the one made while lowering, or one made afterwards."""
        path = str(self.folder / f"{generated}.etrecord")
        if generated:
            record = self.manager.get_etrecord()
            record.update_representative_inputs([list(INPUTS)])
            record.save(path)
        else:
            generate_etrecord(path, self.edge, self.manager)
        return path

    def inspector(self) -> Inspector:
        """Runs the program with an event tracer."""
        dump, outputs = str(self.folder / "etdump"), str(self.folder / "outputs")
        module = _load_for_executorch_from_buffer(
            self.manager.buffer,
            enable_etdump=True,
            debug_buffer_size=BUFFER_FOR_OUTPUTS,
        )
        if not module.has_etdump():
            pytest.skip("the runtime of this ExecuTorch has no event tracer")
        module.forward(INPUTS)
        module.write_etdump_result_to_file(dump, outputs)
        return Inspector(dump, etrecord=self.record(), debug_buffer_path=outputs)


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Lowered:
    with disabled():
        return Lowered(tmp_path_factory.mktemp("stock"))


@pytest.fixture(scope="module")
def aliased(tmp_path_factory: pytest.TempPathFactory) -> Lowered:
    return Lowered(tmp_path_factory.mktemp("aliased"))


def edge_handles(lowered: Lowered) -> Dict[str, int]:
    """The debug handle of each op of the edge program, by the name of its node."""
    graph = lowered.edge.exported_program().graph
    ops = [node for node in graph.nodes if node.op == "call_function"]
    return {node.name: node.meta["debug_handle"] for node in ops}


def test_every_instruction_has_the_debug_handle_of_its_node(
    stock: Lowered, aliased: Lowered
) -> None:
    for lowered in (stock, aliased):
        assert sorted(lowered.handles) == list(
            range(len(instructions(lowered.manager)))
        )
    handles = edge_handles(aliased)
    assert handles == edge_handles(stock)
    assert set(stock.handles.values()) == set(handles.values())
    gone = {handles[name] for name in ALIASES}
    assert set(aliased.handles.values()) == set(handles.values()) - gone


@pytest.mark.parametrize("generated", [True, False], ids=["to_edge", "generate"])
def test_etrecord(stock: Lowered, aliased: Lowered, generated: bool) -> None:
    ours = parse_etrecord(aliased.record(generated))
    theirs = parse_etrecord(stock.record(generated))
    assert graphs(ours) == graphs(theirs)
    assert len(graphs(ours)) == 1 + generated
    assert ours._debug_handle_map == {
        "forward": {str(at): handle for at, handle in aliased.handles.items()}
    }


def graphs(record: ETRecord) -> Dict[str, List[Tuple[str, Any]]]:
    """Names and debug handles of the nodes of each program in a record."""
    programs = {
        "exported": record.exported_program,
        "edge": record.edge_dialect_program,
    }
    return {
        name: [(n.name, n.meta.get("debug_handle")) for n in program.graph.nodes]
        for name, program in programs.items()
        if program is not None
    }


def kernel_events(inspector: Inspector) -> Dict[Any, Any]:
    """The events of kernels, by debug handle."""
    return {
        event.debug_handles: event
        for block in inspector.event_blocks
        for event in block.events
        if event.name.startswith("native_call")
    }


def test_inspector(stock: Lowered, aliased: Lowered) -> None:
    """Events that remain have stock's ops, stack traces and outputs."""
    ours, theirs = (kernel_events(one.inspector()) for one in (aliased, stock))
    gone = {edge_handles(aliased)[name] for name in ALIASES}
    assert set(ours) == set(theirs) - gone
    for handle, event in ours.items():
        assert event.name == theirs[handle].name
        assert event.op_types == theirs[handle].op_types != []
        assert event.stack_traces == theirs[handle].stack_traces != {}
        (got,), (want,) = event.debug_data, theirs[handle].debug_data
        assert torch.equal(got, want)


def test_numeric_gap(stock: Lowered, aliased: Lowered) -> None:
    ours, theirs = (
        one.inspector().calculate_numeric_gap("MSE") for one in (aliased, stock)
    )
    assert {op for ops in theirs["aot_ops"] for op in ops} - {
        op for ops in ours["aot_ops"] for op in ops
    } == {"slice_1", "slice_2"}
    assert max(gap for gaps in ours["gap"] for gap in gaps) < 1e-12


@pytest.mark.parametrize("switch", [disabled, nullcontext], ids=["stock", "aliased"])
def test_tap_compare(switch: Any) -> None:
    """A tapped slice is an output, so it is a copy that can be looked at."""
    with switch():
        table, _ = tap_compare(Halves(), INPUTS)
    assert {"slice_1", "slice_2"} < set(table["node_name"])
    torch.testing.assert_close(
        torch.tensor(table["rt_mean"]), torch.tensor(table["aot_mean"])
    )


def producers(manager: ExecutorchProgramManager) -> List[Any]:
    """What the recipe of the reference finds for each alias."""
    (recipe,) = (
        code
        for code in code_blocks(DOCS / "reference.md", "python")
        if "def producer_of" in code
    )
    names: Dict[str, Any] = {"manager": manager, "decisions": decisions}
    exec(recipe, names)
    return list(names["producers"].values())


def test_producer_of_an_alias(aliased: Lowered) -> None:
    handle = edge_handles(aliased)["aten_sin_default"]
    assert producers(aliased.manager) == [handle, handle]
    event = kernel_events(aliased.inspector())[handle]
    assert event.op_types == ["aten.sin.default"]


def test_producer_that_is_a_delegate(tmp_path: Path) -> None:
    manager = delegated()
    (handles,) = producers(manager)
    module = _load_for_executorch_from_buffer(manager.buffer, enable_etdump=True)
    module.forward(INPUTS)
    dump, record = str(tmp_path / "etdump"), str(tmp_path / "etrecord")
    module.write_etdump_result_to_file(dump)
    manager.get_etrecord().save(record)
    events = [
        event
        for block in Inspector(dump, etrecord=record).event_blocks
        for event in block.events
        if event.name == "DELEGATE_CALL"
    ]
    assert [event.debug_handles for event in events].count(handles) == 1
    assert events[0].debug_handles == handles


def test_producer_of_an_input_is_none() -> None:
    manager = lower(Fn(lambda x: x[2:].sin()), INPUTS)
    assert producers(manager) == [None]


UNPLANNED = MemoryPlanningPass(alloc_graph_input=False)
CHANNELS_LAST = torch.ones(1, 4, 5, 6).to(memory_format=torch.channels_last)
ROWS = {"x": {0: torch.export.Dim("rows", min=4, max=8)}}


class Unsqueezed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.unsqueeze(0).sin()


class Sliced(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, 1:3].sin()


class Rows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[1:].sin()


PLACED_AT_RUN_TIME = {
    "et_view": (
        Unsqueezed,
        INPUTS,
        None,
        ExecutorchBackendConfig(memory_planning_pass=UNPLANNED, emit_stacktrace=True),
    ),
    "et_slice": (
        Rows,
        INPUTS,
        ROWS,
        AliasBackendConfig(alias=AliasConfig(emit_et_slice=True), emit_stacktrace=True),
    ),
}


@pytest.mark.parametrize("op", PLACED_AT_RUN_TIME)
def test_debug_handle_of_an_alias_that_is_an_instruction(op: str) -> None:
    module, inputs, shapes, config = PLACED_AT_RUN_TIME[op]
    edge = to_edge(torch.export.export(module(), inputs, dynamic_shapes=shapes))
    ops = [n for n in edge.exported_program().graph.nodes if n.op == "call_function"]
    handles = [node.meta["debug_handle"] for node in ops]
    manager = edge.to_executorch(config)
    (plan,) = manager.executorch_program.execution_plan
    assert plan.operators[0].name == f"executorch_prim::{op}"
    assert manager.debug_handle_map["forward"] == dict(enumerate(handles))


@pytest.mark.parametrize(
    "module, inputs, shapes, config",
    [
        *PLACED_AT_RUN_TIME.values(),
        (Halves, INPUTS, None, ExecutorchBackendConfig(emit_stacktrace=True)),
        (Sliced, (CHANNELS_LAST,), None, ExecutorchBackendConfig(emit_stacktrace=True)),
    ],
    ids=[*PLACED_AT_RUN_TIME, "no instruction", "converted input"],
)
def test_each_instruction_has_a_stack_trace(
    module: Any, inputs: Any, shapes: Any, config: Any
) -> None:
    edge = to_edge(torch.export.export(module(), inputs, dynamic_shapes=shapes))
    manager = edge.to_executorch(config)
    (plan,) = manager.executorch_program.execution_plan
    (chain,) = plan.chains
    assert len(chain.stacktrace) == len(chain.instructions)
    for frames in chain.stacktrace:
        assert frames.items[-1].name == "forward"
        assert frames.items[-1].filename == module.forward.__code__.co_filename


def test_a_conversion_has_no_debug_handle() -> None:
    manager = to_edge(torch.export.export(Sliced(), (CHANNELS_LAST,))).to_executorch()
    assert [len(instructions(manager)), *manager.debug_handle_map["forward"]] == [2, 1]


def test_disabled_has_the_debug_handles_of_stock() -> None:
    """Stock gives an `et_view` none."""
    exported = torch.export.export(Fn(lambda x: x.view(8, 4).sin()), INPUTS)
    config = ExecutorchBackendConfig(memory_planning_pass=UNPLANNED)
    with disabled():
        manager = to_edge(exported).to_executorch(config)
    assert list(manager.debug_handle_map["forward"]) == [1]
