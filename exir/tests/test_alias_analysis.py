# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

import unittest
from typing import Any, Optional

import torch
from alias_testing import GraphBuilder
from executorch.exir.dialects._ops import ops
from executorch_slice.exir.alias_analysis import AliasAnalysis
from executorch_slice.exir.alias_decision import Reason
from executorch_slice.exir.alias_effects import MemoryEffects
from executorch_slice.exir.alias_roots import PlannedMemory
from parameterized import parameterized
from torch.fx import Node

aten = torch.ops.aten
SLICE = aten.slice_copy.Tensor


class TestAliasAnalysis(unittest.TestCase):
    def setUp(self) -> None:
        self.g = GraphBuilder()

    def base(self, *shape: int, **kwargs: Any) -> Node:
        """A computed tensor."""
        return self.g.call(aten.mul.Tensor, self.g.input(*shape, **kwargs), 2)

    def reads(self, *nodes: Node) -> list:
        return [self.g.call(aten.neg.default, node) for node in nodes]

    def reason(
        self, node: Node, *outputs: Node, memory: Optional[PlannedMemory] = None
    ) -> Reason:
        module = self.g.build(*outputs)
        analysis = AliasAnalysis(module, memory or PlannedMemory())
        return analysis.copies[node].reason

    @parameterized.expand(
        [
            ("rows", (4, 6), SLICE, (0, 1, 3), 24),
            ("negative start", (4, 6), SLICE, (0, -1, 9223372036854775807), 72),
            ("end past the size", (4, 6), SLICE, (0, 2, 99), 48),
            ("start before the first", (4, 6), SLICE, (0, -99, 2), 0),
            ("empty", (4, 6), SLICE, (0, 99, 100), 0),
            ("all of it", (4, 6), SLICE, (0, 0, 4), 0),
            ("dim 1 under batch 1", (1, 4, 6), SLICE, (1, 2, 4), 48),
            ("negative dim", (1, 4, 6), SLICE, (-2, 2, 4), 48),
            ("step with one element left", (4, 6), SLICE, (0, 1, 4, 3), 24),
            ("inner dim with one row", (1, 6), SLICE, (1, 2, 5), 8),
            ("one column of a column", (6, 1), SLICE, (1, 0, 1), 0),
            ("select", (4, 6), aten.select_copy.int, (0, 2), 48),
            ("select from the end", (4, 6), aten.select_copy.int, (0, -1), 72),
            ("select under ones", (1, 1, 4), aten.select_copy.int, (2, 3), 12),
            ("select to 0-d", (4,), aten.select_copy.int, (0, 1), 4),
            ("narrow", (4, 6), aten.narrow_copy.default, (0, 1, 2), 24),
            ("narrow from the end", (4, 6), aten.narrow_copy.default, (0, -2, 2), 48),
        ]
    )
    def test_aliasable(
        self, _name: str, shape: tuple, op: Any, args: tuple, offset: int
    ) -> None:
        node = self.g.call(op, self.base(*shape), *args)
        module = self.g.build(*self.reads(node))
        copy = AliasAnalysis(module, PlannedMemory()).copies[node]
        self.assertEqual((copy.verdict, copy.reason), ("alias", Reason.SAFE))
        assert copy.layout is not None
        self.assertEqual(copy.layout.byte_offset, offset)

    @parameterized.expand(
        [
            ("columns", (4, 6), SLICE, (1, 0, 3)),
            ("dim 1 under batch 2", (2, 4, 6), SLICE, (1, 0, 2)),
            ("every other row", (4, 6), SLICE, (0, 0, 4, 2)),
            ("select in the middle", (2, 4, 6), aten.select_copy.int, (1, 0)),
        ]
    )
    def test_not_dense(self, _name: str, shape: tuple, op: Any, args: tuple) -> None:
        node = self.g.call(op, self.base(*shape), *args)
        self.assertEqual(self.reason(node, *self.reads(node)), Reason.NOT_DENSE)

    @parameterized.expand(
        [
            ("aten", SLICE),
            ("edge", ops.edge.aten.slice_copy.Tensor),
            ("view op", aten.slice.Tensor),
        ]
    )
    def test_spellings(self, _name: str, op: Any) -> None:
        node = self.g.call(op, self.base(4, 6), 0, 1, 3)
        self.assertEqual(self.reason(node, *self.reads(node)), Reason.SAFE)

    @parameterized.expand(
        [
            (dtype,)
            for dtype in (
                torch.bool,
                torch.int8,
                torch.int64,
                torch.float16,
                torch.bfloat16,
                torch.float64,
            )
        ]
    )
    def test_offset_is_in_bytes(self, dtype: torch.dtype) -> None:
        base = self.g.call(aten.clone.default, self.g.input(4, 3, dtype=dtype))
        node = self.g.call(SLICE, base, 0, 1, 3)
        module = self.g.build(self.g.call(aten.clone.default, node))
        layout = AliasAnalysis(module, PlannedMemory()).copies[node].layout
        assert layout is not None
        self.assertEqual(layout.byte_offset, 3 * dtype.itemsize)

    def test_channels_last_base(self) -> None:
        """Under batch 1 the rows of a channels-last image lie together."""
        image = self.g.input(1, 3, 4, 5, memory_format=torch.channels_last)
        base = self.g.call(aten.clone.default, image)
        rows = self.g.call(SLICE, base, 2, 1, 3)
        channels = self.g.call(SLICE, base, 1, 1, 3)
        dense = torch.empty(1, 3, 2, 5).to(memory_format=torch.channels_last)
        rows.meta["spec"].stride = dense.stride()
        rows.meta["spec"].dim_order = dense.dim_order()
        module = self.g.build(*self.reads(rows, channels))
        copies = AliasAnalysis(module, PlannedMemory()).copies
        self.assertEqual(copies[rows].reason, Reason.SAFE)
        layout = copies[rows].layout
        assert layout is not None
        self.assertEqual(layout.byte_offset, 5 * 3 * 4)
        self.assertEqual(copies[channels].reason, Reason.NOT_DENSE)

    def test_output_stays(self) -> None:
        node = self.g.call(SLICE, self.base(4, 6), 0, 1, 3)
        self.assertEqual(self.reason(node, node), Reason.OUTPUT)

    @parameterized.expand(
        [
            ("constant", dict(const=True), {}, Reason.CONSTANT),
            ("planned input", {}, {}, Reason.SAFE),
            ("input", {}, dict(graph_inputs=False), Reason.UNPLANNED_INPUT),
            (
                "planned buffer",
                dict(buffer=True),
                dict(graph_inputs=False),
                Reason.SAFE,
            ),
            (
                "buffer",
                dict(buffer=True),
                dict(mutable_buffers=False),
                Reason.UNPLANNED_BUFFER,
            ),
            ("custom planner", {}, dict(trusted=False), Reason.CUSTOM_PLANNER),
        ]
    )
    def test_placeholders(
        self, _name: str, kind: dict, planned: dict, reason: Reason
    ) -> None:
        node = self.g.call(SLICE, self.g.input(4, 6, **kind), 0, 1, 3)
        memory = PlannedMemory(**planned)
        self.assertEqual(self.reason(node, *self.reads(node), memory=memory), reason)

    def test_unplanned_output(self) -> None:
        base = self.base(4, 6)
        node = self.g.call(SLICE, base, 0, 1, 3)
        memory = PlannedMemory(graph_outputs=False)
        reason = self.reason(node, base, *self.reads(node), memory=memory)
        self.assertEqual(reason, Reason.UNPLANNED_OUTPUT)

    def test_branch_operand(self) -> None:
        node = self.g.call(SLICE, self.g.input(4, 6), 0, 1, 3)
        module = self.g.build(*self.reads(node))
        analysis = AliasAnalysis(module, PlannedMemory(), is_method=False)
        self.assertEqual(analysis.copies[node].reason, Reason.CONTROL_FLOW_OPERAND)

    def test_chain_counts_from_the_root(self) -> None:
        base = self.base(8, 4)
        rows = self.g.call(SLICE, base, 0, 2, 8)
        flat = self.g.call(aten.view_copy.default, rows, [24])
        last = self.g.call(aten.select_copy.int, flat, 0, 5)
        analysis = AliasAnalysis(self.g.build(*self.reads(last)), PlannedMemory())
        copy = analysis.copies[last]
        self.assertEqual((copy.root, copy.byte_offset), (base, 2 * 16 + 5 * 4))

    def test_dynamic_argument(self) -> None:
        node = self.g.call(SLICE, self.base(4, 6), 0, 1, 3)
        node.args = (*node.args[:3], self.g.graph.placeholder("end"))
        self.assertEqual(self.reason(node, *self.reads(node)), Reason.DYNAMIC)

    @parameterized.expand(["missing", "sparse", "list"])
    def test_no_spec(self, kind: str) -> None:
        base = self.base(4, 6)
        node = self.g.call(SLICE, base, 0, 1, 3)
        reads = self.reads(node)
        if kind == "missing":
            del node.meta["spec"]
        elif kind == "sparse":
            base.meta["spec"].is_sparse = True
        else:
            base.meta["spec"] = [base.meta["spec"]]
        self.assertEqual(self.reason(node, *reads), Reason.NO_SPEC)

    def test_switched_off(self) -> None:
        node = self.g.call(SLICE, self.base(4, 6), 0, 1, 3)
        module = self.g.build(*self.reads(node))
        analysis = AliasAnalysis(module, PlannedMemory(), enabled=False)
        self.assertEqual(analysis.copies[node].reason, Reason.SWITCHED_OFF)

    def test_split_is_all_or_nothing(self) -> None:
        split = self.g.call(aten.split_copy.Tensor, self.base(4, 6), 2)
        a, b = self.g.piece(split, 0), self.g.piece(split, 1)
        module = self.g.build(a, *self.reads(b))
        copies = AliasAnalysis(module, PlannedMemory()).copies
        self.assertEqual(copies[a].reason, Reason.OUTPUT)
        self.assertEqual(copies[b].reason, Reason.SPLIT_STAYS)


class TestConflicts(unittest.TestCase):
    """`write` overwrites the base in place; what may still be an alias?"""

    def setUp(self) -> None:
        self.g = GraphBuilder()
        x = self.g.input(4, 6)
        self.new = self.g.input(2, 6)
        self.rows = self.g.input(2, dtype=torch.int64)
        self.base = self.g.call(aten.mul.Tensor, x, 2)

    def slice(self, base: Node) -> Node:
        return self.g.call(SLICE, base, 0, 1, 3)

    def read(self, node: Node) -> Node:
        return self.g.call(aten.neg.default, node)

    def write(self, node: Node) -> Node:
        return self.g.call(aten.index_put_.default, node, [self.rows], self.new)

    def reasons(self, *nodes: Node, outputs: tuple) -> list:
        copies = AliasAnalysis(self.g.build(*outputs), PlannedMemory()).copies
        return [copies[node].reason.name for node in nodes]

    def test_read_before_the_write(self) -> None:
        part = self.slice(self.base)
        read = self.read(part)
        written = self.write(self.base)
        self.assertEqual(self.reasons(part, outputs=(read, written)), ["SAFE"])

    def test_read_after_the_write(self) -> None:
        part = self.slice(self.base)
        written = self.write(self.base)
        read = self.read(part)
        outputs = (read, written)
        self.assertEqual(self.reasons(part, outputs=outputs), ["CONFLICTING_WRITE"])

    def test_read_by_the_write(self) -> None:
        part = self.slice(self.base)
        written = self.g.call(aten.index_put_.default, self.base, [self.rows], part)
        self.assertEqual(self.reasons(part, outputs=(written,)), ["CONFLICTING_WRITE"])

    def test_taken_after_the_write(self) -> None:
        written = self.write(self.base)
        part = self.slice(written)
        self.assertEqual(self.reasons(part, outputs=(self.read(part),)), ["SAFE"])

    def test_read_of_what_is_derived_from_it(self) -> None:
        """The copy nearest to the late reader stays; the others are free."""
        part = self.slice(self.base)
        view = self.g.call(aten.view_copy.default, part, [12])
        end = self.g.call(SLICE, view, 0, 6, 12)
        written = self.write(self.base)
        outputs = (self.read(end), written)
        self.assertEqual(
            self.reasons(part, view, end, outputs=outputs),
            ["SAFE", "SAFE", "CONFLICTING_WRITE"],
        )

    def test_derived_after_the_write(self) -> None:
        """`end` may alias `part` once `part` itself is a copy."""
        part = self.slice(self.base)
        written = self.write(self.base)
        end = self.g.call(SLICE, part, 0, 1, 2)
        outputs = (self.read(end), written)
        self.assertEqual(
            self.reasons(part, end, outputs=outputs), ["CONFLICTING_WRITE", "SAFE"]
        )

    def test_reader_that_is_a_copy_ends_the_alias(self) -> None:
        part = self.slice(self.base)
        column = self.g.call(aten.select_copy.int, part, 1, 0)
        written = self.write(self.base)
        outputs = (self.read(column), written)
        self.assertEqual(
            self.reasons(part, column, outputs=outputs), ["SAFE", "NOT_DENSE"]
        )

    def test_written_alias(self) -> None:
        part = self.slice(self.base)
        written = self.write(part)
        outputs = (written, self.read(self.base))
        self.assertEqual(self.reasons(part, outputs=outputs), ["WRITTEN"])

    def test_written_through_what_is_derived(self) -> None:
        part = self.slice(self.base)
        again = self.g.call(SLICE, part, 0, 0, 2)
        written = self.write(again)
        outputs = (written, self.read(self.base))
        self.assertEqual(
            self.reasons(part, again, outputs=outputs), ["SAFE", "WRITTEN"]
        )

    def test_write_back_of_a_buffer(self) -> None:
        buffer = self.g.input(4, 6, buffer=True)
        early, late = self.slice(buffer), self.slice(buffer)
        read = self.read(early)
        copied = self.g.call(aten.copy_.default, buffer, self.base)
        outputs = (copied, read, self.read(late))
        self.assertEqual(
            self.reasons(early, late, outputs=outputs), ["SAFE", "CONFLICTING_WRITE"]
        )

    def test_shared_allocation_is_a_write(self) -> None:
        part = self.slice(self.base)
        relu = self.g.call(aten.relu.default, self.base)
        relu.meta["_share_alloc_with_arg_idx"] = 0
        outputs = (relu, self.read(part))
        self.assertEqual(self.reasons(part, outputs=outputs), ["CONFLICTING_WRITE"])

    def test_unknown_callable_may_write(self) -> None:
        part = self.slice(self.base)
        self.g.graph.call_function(len, (self.base,))
        self.assertEqual(
            self.reasons(part, outputs=(self.read(part),)), ["CONFLICTING_WRITE"]
        )

    def test_keyword_and_list_arguments(self) -> None:
        x, y = self.g.input(4, 6), self.g.input(4, 6)
        listed = self.g.call(aten._foreach_neg_.default, [x, y])
        named = self.g.call(aten.neg.out, self.base, out=self.g.input(4, 6))
        effects = MemoryEffects(self.g.build(named))
        self.assertEqual(set(effects.writes), {x, y, named.kwargs["out"]})
        self.assertIs(effects.roots[named], named.kwargs["out"])
        self.assertEqual(effects.writes[x], [effects.order[listed]])
