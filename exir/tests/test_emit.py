# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

import unittest
from unittest import mock

import torch
from alias_testing import all_safe_aliases, lower, slice_kernels
from executorch.exir import memory
from executorch.exir.error import InternalError
from executorch.exir.passes.memory_planning_pass import MemoryPlanningPass
from executorch.exir.schema import Tensor
from executorch_slice import decisions
from executorch_slice.exir.alias_roots import PlannedMemory
from executorch_slice.exir.memory import alias_root
from executorch_slice.exir.program import _program


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
