# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Lowers saved programs as the commands are asked to, and names what comes out."""

import copy
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Any, Optional

from executorch.exir import EdgeProgramManager, ExecutorchProgramManager, to_edge
from executorch.exir.program import to_edge_transform_and_lower
from executorch.exir.schema import ExecutionPlan, Tensor
from executorch.exir.tensor import scalar_type_enum, TensorSpec
from executorch.extension.pybindings.portable_lib import _get_operator_names
from executorch_slice import AliasConfig, ExecutorchBackendConfig
from executorch_slice.arena_layout import Arena, arenas, KnownValue
from executorch_slice.compare import (
    all_pairs,
    close,
    LoadedProgram,
    lower,
    lower_stock,
    same_bits,
)
from executorch_slice.exir.memory import is_alias
from executorch_slice.exir.verification.plan_verifier import PlanVerificationError
from executorch_slice.exit_codes import CommandError, ExitCode
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class LoweringOptions:
    """What a command was asked for: see `AliasConfig`.

    Attributes:
        backend: "xnnpack", or None for portable kernels.
        min_alignment: bytes.
        emit_et_slice: whether the runtime that the program is for has the op.
    """

    backend: Optional[str]
    memory_growth: Any
    min_alignment: int
    emit_et_slice: bool


def to_edge_program(
    exported: ExportedProgram, options: LoweringOptions
) -> EdgeProgramManager:
    """Raises CommandError where ExecuTorch cannot lower the program."""
    try:
        if options.backend is None:
            return to_edge(exported)
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
            XnnpackPartitioner,
        )

        return to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
    except Exception as error:
        raise _lowering_failed(error) from error


def lower_aliased(
    edge: EdgeProgramManager, options: LoweringOptions
) -> ExecutorchProgramManager:
    """Lowers a copy of `edge`, and proves its memory plan.

    Raises:
        CommandError: ExecuTorch cannot lower it, or the plan is wrong.
    """
    alias = AliasConfig(
        memory_growth=options.memory_growth,
        min_alignment=options.min_alignment,
        emit_et_slice=options.emit_et_slice,
    )
    try:
        return lower(edge, ExecutorchBackendConfig(alias=alias))
    except PlanVerificationError as error:
        raise CommandError(ExitCode.FAILED_CHECK, f"wrong plan: {error}") from error
    except Exception as error:
        raise _lowering_failed(error) from error


def lower_without_aliases(edge: EdgeProgramManager) -> ExecutorchProgramManager:
    """Lowers a copy of `edge` as stock ExecuTorch does.

    Raises:
        CommandError: ExecuTorch cannot lower it.
    """
    try:
        return lower_stock(edge)
    except Exception as error:
        raise _lowering_failed(error) from error


def run_on_examples(
    exported: ExportedProgram,
    stock: ExecutorchProgramManager,
    aliased: ExecutorchProgramManager,
) -> str:
    """Runs all three on the example inputs that were exported; says how it went.

    Raises:
        CommandError: the outputs are neither stock's bit for bit nor eager's within
            float32 rounding.
    """
    if exported.example_inputs is None:
        return "not run: the file holds no example inputs"
    args, kwargs = exported.example_inputs
    inputs = pytree.tree_leaves((args, kwargs))
    missing = _operators(aliased) - set(_get_operator_names())
    if missing:
        return f"not run: this process has no kernel of {', '.join(sorted(missing))}"
    try:
        got = LoadedProgram(aliased)(*copy.deepcopy(inputs))
        want = LoadedProgram(stock)(*copy.deepcopy(inputs))
    except RuntimeError as error:
        return f"not run: {_first_line(error)}"
    if all_pairs(same_bits, got, want):
        return "outputs on the example inputs equal stock's bit for bit"
    args, kwargs = copy.deepcopy((args, kwargs))
    if all_pairs(close, got, pytree.tree_leaves(exported.module()(*args, **kwargs))):
        return "outputs on the example inputs equal eager's; stock's are others"
    raise CommandError(
        ExitCode.FAILED_CHECK, "outputs on the example inputs differ from stock's"
    )


def _operators(manager: ExecutorchProgramManager) -> set[str]:
    plans = manager.executorch_program.execution_plan
    operators = [operator for plan in plans for operator in plan.operators]
    return {".".join(filter(None, (op.name, op.overload))) for op in operators}


def program_arenas(manager: ExecutorchProgramManager) -> list[Arena]:
    """The arenas of all methods, with what their graphs say of the tensors."""
    return [
        arena
        for plan in manager.executorch_program.execution_plan
        for arena in arenas(plan, _known_values(manager, plan))
    ]


def _known_values(
    manager: ExecutorchProgramManager, plan: ExecutionPlan
) -> dict[int, KnownValue]:
    """The nodes of planned values, which a program does not hold.

    Values are emitted in the order of the graph, so those of one place, shape and dtype
    are the nodes of the same, one by one.
    """
    nodes: dict[int, tuple[TensorSpec, KnownValue]] = {}
    for node in manager.exported_program(plan.name).graph.nodes:
        if node.op == "output" or is_alias(node) and all(map(is_alias, node.users)):
            continue  # an alias that only aliases read has no value
        specs = pytree.tree_leaves(node.meta.get("spec"))
        for at, spec in enumerate(specs):
            if isinstance(spec, TensorSpec) and spec.mem_offset is not None:
                # An alloc has no name of its own; its kernel comes next.
                if id(spec) not in nodes or nodes[id(spec)][1].name.startswith("alloc"):
                    name = node.name if len(specs) == 1 else f"{node.name}.{at}"
                    nodes[id(spec)] = spec, KnownValue(name, is_alias(node))
    places = defaultdict[Any, deque[KnownValue]](deque)
    for spec, node in nodes.values():
        dtype = scalar_type_enum(spec.dtype)
        places[spec.mem_id, spec.mem_offset, tuple(spec.shape), dtype].append(node)
    known = {}
    for value, evalue in enumerate(plan.values):
        t = evalue.val
        if isinstance(t, Tensor) and t.allocation_info is not None:
            at, offset = t.allocation_info.memory_id, t.allocation_info.memory_offset
            there = places[at, offset, tuple(t.sizes), t.scalar_type]
            if there:
                known[value] = there.popleft()
    return known


def _lowering_failed(error: Exception) -> CommandError:
    message = f"ExecuTorch cannot lower the program: {_first_line(error)}"
    return CommandError(ExitCode.LOWERING, message)


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), repr(error))
