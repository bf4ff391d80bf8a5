# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Programs that call et_slice and et_select, made of stock programs that copy."""

from typing import Any, Callable, Optional

import torch
from alias_testing import Fn
from executorch.exir import ExecutorchBackendConfig, to_edge
from executorch.exir._serialize._program import (
    deserialize_pte_binary,
    serialize_pte_binary,
)
from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite, naive
from executorch.exir.passes.memory_planning_pass import MemoryPlanningPass
from executorch.exir.schema import ExecutionPlan, KernelCall, Operator
from executorch_slice import disabled

# Each copy, and the op that takes the same arguments but the last: the copy's result.
OPS = {"aten::slice_copy": "et_slice", "aten::select_copy": "et_select"}
Edit = Callable[[ExecutionPlan, KernelCall], None]


def et_slice_program(
    fn: Callable[..., Any],
    inputs: Any,
    dynamic_shapes: Any = None,
    alloc_graph_input: bool = True,
) -> bytes:
    """Lowers `fn`, with et_slice and et_select for each slice_copy and select_copy."""
    return with_et_slice(stock_program(fn, inputs, dynamic_shapes, alloc_graph_input))


def stock_program(
    fn: Callable[..., Any],
    inputs: Any,
    dynamic_shapes: Any = None,
    alloc_graph_input: bool = True,
) -> bytes:
    """Lowers `fn` with copies. No tensors share memory, as if each was alive always."""
    if not isinstance(fn, torch.nn.Module):
        fn, dynamic_shapes = Fn(fn), dynamic_shapes and (dynamic_shapes,)
    exported = torch.export.export(
        fn, inputs, dynamic_shapes=dynamic_shapes, strict=False
    )
    config = ExecutorchBackendConfig(
        memory_planning_pass=MemoryPlanningPass(
            MemoryPlanningAlgorithmSuite([naive]), alloc_graph_input=alloc_graph_input
        ),
        remove_view_copy=False,
    )
    with disabled():
        return to_edge(exported).to_executorch(config).buffer


def with_et_slice(program: bytes, edit: Optional[Edit] = None) -> bytes:
    """`program` with an alias in place of each copy.

    `edit` may change the plan after that, once for each alias.
    """
    pte = deserialize_pte_binary(program)
    for plan in pte.program.execution_plan:
        for instruction in plan.chains[0].instructions:
            call = instruction.instr_args
            if not isinstance(call, KernelCall):
                continue
            name = OPS.get(plan.operators[call.op_index].name)
            if name:
                call.op_index = len(plan.operators)
                plan.operators.append(Operator(f"executorch_prim::{name}", "default"))
                del call.args[-1]
                out: Any = plan.values[call.args[-1]].val
                out.allocation_info = None
                if edit:
                    edit(plan, call)
    return bytes(serialize_pte_binary(pte, extract_delegate_segments=True))
