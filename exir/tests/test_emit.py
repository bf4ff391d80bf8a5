# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

import unittest
from typing import Any
from unittest import mock

import torch
from alias_testing import all_safe_aliases, lower, slice_kernels
from executorch.exir import ExecutorchProgramManager, memory, to_edge
from executorch.exir.error import InternalError
from executorch.exir.passes.memory_planning_pass import MemoryPlanningPass
from executorch.exir.schema import Int, KernelCall, Null, Tensor, TensorShapeDynamism
from executorch_slice import AliasConfig, decisions, ExecutorchBackendConfig
from executorch_slice.exir.alias_roots import PlannedMemory
from executorch_slice.exir.memory import alias_root
from executorch_slice.exir.program import _program
from executorch_slice.exir.verification.plan_verifier import (
    PlanVerificationError,
    verify_plan,
)
from torch.export import Dim


class Rows(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 2)[1:3] + 1


class RowsOfInput(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[1:3] + 1


class TestEmit(unittest.TestCase):
    inputs = (torch.arange(24.0).reshape(4, 6),)

    def test_elided_alias(self) -> None:
        manager = lower(Rows(), self.inputs)
        (plan,) = manager.executorch_program.execution_plan
        self.assertEqual(slice_kernels(manager), 0)
        self.assertNotIn("aten::slice_copy", [op.name for op in plan.operators])
        self.assertEqual([d.verdict for d in decisions(manager)], ["alias"])

    def test_serialized_tensor_carries_the_summed_offset(self) -> None:
        manager = lower(Rows(), self.inputs)
        graph = manager.exported_program().graph
        (alias,) = graph.find_nodes(op="call_function", target=memory.slice)
        root = alias_root(alias).meta["spec"]
        (plan,) = manager.executorch_program.execution_plan
        places = [
            (v.val.allocation_info.memory_id, v.val.allocation_info.memory_offset)
            for v in plan.values
            if isinstance(v.val, Tensor) and v.val.sizes == [2, 6]
        ]
        self.assertIn((root.mem_id, root.mem_offset + 24), places)

    def test_unplanned_alias_is_a_clear_error(self) -> None:
        config = all_safe_aliases(
            memory_planning_pass=MemoryPlanningPass(alloc_graph_input=False)
        )
        with mock.patch.object(_program, "planned_memory", lambda *_: PlannedMemory()):
            with self.assertRaisesRegex(
                InternalError,
                "alias of x, which is not planned.*remove_view_copy=False",
            ):
                lower(RowsOfInput(), self.inputs, config)


class Dynamic(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return y[: x.shape[0] - 1] + y[-1]


class Late(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part = (x * 2)[1:]
        return (x + 3)[1:] - part


class TestEmitKernels(unittest.TestCase):
    inputs = (torch.arange(24.0).reshape(4, 6),)

    def lower(self, module: torch.nn.Module, **alias: Any) -> ExecutorchProgramManager:
        rows = ({0: Dim("rows", min=3, max=8)},)
        config = ExecutorchBackendConfig(alias=AliasConfig(emit_et_slice=True, **alias))
        return lower(module, self.inputs, config, rows)

    def test_arguments(self) -> None:
        (plan,) = self.lower(Dynamic()).executorch_program.execution_plan
        calls = {}
        for instruction in plan.chains[0].instructions:
            call = instruction.instr_args
            if isinstance(call, KernelCall):
                values = [plan.values[index].val for index in call.args]
                operator = plan.operators[call.op_index]
                calls[f"{operator.name}.{operator.overload}"] = values
        base, *bounds, out = calls["executorch_prim::et_slice.default"]
        self.assertEqual([type(value) for value in bounds], [Int, Null, Int, Int])
        self.assertEqual((bounds[0], bounds[3]), (Int(0), Int(1)))
        self.assertEqual((out.sizes, out.allocation_info), ([7, 6], None))
        self.assertEqual(out.shape_dynamism, TensorShapeDynamism.DYNAMIC_BOUND)
        same_base, dim, index, row = calls["executorch_prim::et_select.default"]
        self.assertEqual((dim, index, row.sizes), (Int(0), Int(-1), [6]))
        self.assertIs(base, same_base)
        self.assertIsNone(row.allocation_info)
        self.assertEqual(row.shape_dynamism, TensorShapeDynamism.STATIC)

    def test_without_kernels_stock_copies(self) -> None:
        for off in (AliasConfig(enabled=False, emit_et_slice=True), AliasConfig()):
            config = ExecutorchBackendConfig(alias=off)
            rows = ({0: Dim("rows", min=3, max=8)},)
            manager = lower(Dynamic(), self.inputs, config, rows)
            self.assertEqual(slice_kernels(manager), 2)
            self.assertNotIn("kernel", [d.verdict for d in decisions(manager)])

    def test_lowered_again(self) -> None:
        """The instructions become the copies that they were."""
        exported = torch.export.export(
            Dynamic(), self.inputs, dynamic_shapes=({0: Dim("rows", min=3, max=8)},)
        )
        edge = to_edge(exported)
        config = ExecutorchBackendConfig(alias=AliasConfig(emit_et_slice=True))
        self.assertEqual(slice_kernels(edge.to_executorch(config)), 0)
        self.assertEqual(slice_kernels(edge.to_executorch()), 2)

    def test_verifier_rejects_a_base_that_is_overwritten(self) -> None:
        program = self.lower(Late(), memory_growth="allow").exported_program()
        nodes = {node.name: node for node in program.graph.nodes}
        verify_plan(program)
        late, base = (
            nodes[f"aten_{name}_tensor"].meta["spec"] for name in ("add", "mul")
        )
        place, late.mem_offset = late.mem_offset, base.mem_offset
        with self.assertRaisesRegex(PlanVerificationError, "mul.* hold what .*add"):
            verify_plan(program)
        late.mem_offset = place
        part = nodes["aten_slice_copy_tensor"].meta["spec"]
        part.mem_id, part.mem_offset = base.mem_id, base.mem_offset
        with self.assertRaisesRegex(PlanVerificationError, "only the run will tell"):
            verify_plan(program)
