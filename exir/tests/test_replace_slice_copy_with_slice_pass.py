# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

import operator
import unittest
from typing import Any

import torch
from alias_testing import GraphBuilder, nodes_of
from executorch.exir import memory
from executorch.exir.passes.replace_slice_copy_with_slice_pass import (
    ReplaceSliceCopyWithSlicePass,
)
from executorch_slice.exir.alias_roots import PlannedMemory
from executorch_slice.exir.memory import alias_root
from executorch_slice.exir.passes.analyze_aliases_pass import AnalyzeAliasesPass
from executorch_slice.exir.passes.replace_view_copy_with_view_pass import (
    _ViewSpec,
    ReplaceViewCopyWithViewPass,
)
from parameterized import parameterized
from torch.fx import Node

aten = torch.ops.aten


class TestReplaceSliceCopyWithSlicePass(unittest.TestCase):
    def setUp(self) -> None:
        self.g = GraphBuilder()
        self.base = self.g.call(aten.mul.Tensor, self.g.input(6, 4), 2)

    def read(self, node: Node) -> Node:
        return self.g.call(aten.neg.default, node)

    @parameterized.expand(
        [
            ("slice", aten.slice_copy.Tensor, (0, 1, 3), memory.slice, 16),
            ("all", aten.slice_copy.Tensor, (0, 0, 6), memory.view, 0),
            ("select", aten.select_copy.int, (0, -2), memory.select, 64),
            ("narrow", aten.narrow_copy.default, (0, -2, 1), memory.slice, 64),
            ("narrow to none", aten.narrow_copy.default, (0, 6, 0), memory.slice, 0),
            ("view", aten.view_copy.default, ([24],), memory.view, 0),
        ]
    )
    def test_rewrite(
        self, _name: str, op: Any, args: tuple, target: Any, offset: int
    ) -> None:
        node = self.g.call(op, self.base, *args)
        module = self.g.build(self.read(node))
        x = torch.arange(24.0).reshape(6, 4)
        want = module(x)
        ReplaceViewCopyWithViewPass()(module)
        ReplaceSliceCopyWithSlicePass()(module)
        self.assertIs(node.target, target)
        spec = node.meta["spec"]
        self.assertIsInstance(spec, _ViewSpec)
        self.assertIs(spec._base, self.base.meta["spec"])
        self.assertEqual(spec.byte_offset, offset)
        torch.testing.assert_close(module(x), want)  # alias nodes run in Python

    @parameterized.expand(
        [
            ("split", aten.split_copy.Tensor, (4,), [0, 64]),
            ("sizes", aten.split_with_sizes_copy.default, ([1, 2, 3],), [0, 16, 48]),
            ("unbind", aten.unbind_copy.int, (), [0, 16, 32, 48, 64, 80]),
            ("chunk", aten.chunk.default, (3,), [0, 32, 64]),
        ]
    )
    def test_split_disappears(
        self, _name: str, op: Any, args: tuple, offsets: list
    ) -> None:
        split = self.g.call(op, self.base, *args)
        pieces = [self.g.piece(split, i) for i in range(len(offsets))]
        module = self.g.build(*map(self.read, pieces))
        x = torch.arange(24.0).reshape(6, 4)
        want = module(x)
        ReplaceSliceCopyWithSlicePass()(module)
        self.assertEqual(nodes_of(module, op, operator.getitem), [])
        self.assertEqual([p.meta["spec"].byte_offset for p in pieces], offsets)
        torch.testing.assert_close(module(x), want)

    def test_split_stays_for_a_piece_that_needs_it(self) -> None:
        split = self.g.call(aten.split_copy.Tensor, self.base, 3)
        pieces = [self.g.piece(split, i) for i in range(2)]
        module = self.g.build(pieces[0], self.read(pieces[1]))
        ReplaceSliceCopyWithSlicePass()(module)
        self.assertEqual(nodes_of(module, operator.getitem), pieces)

    def test_unused_piece(self) -> None:
        split = self.g.call(aten.split_copy.Tensor, self.base, 3)
        module = self.g.build(self.read(self.g.piece(split, 1)))
        ReplaceSliceCopyWithSlicePass()(module)
        self.assertEqual(nodes_of(module, aten.split_copy.Tensor), [])

    def test_chain_has_one_root(self) -> None:
        rows = self.g.call(aten.slice_copy.Tensor, self.base, 0, 1, 5)
        flat = self.g.call(aten.view_copy.default, rows, [2, 8])
        last = self.g.call(aten.select_copy.int, flat, 0, 1)
        module = self.g.build(self.read(last))
        analysis = AnalyzeAliasesPass()
        for alias_pass in (
            analysis,
            ReplaceViewCopyWithViewPass(analysis),
            ReplaceSliceCopyWithSlicePass(analysis),
        ):
            alias_pass(module)
        self.assertIs(alias_root(last), self.base)
        for node in (rows, flat, last):
            self.assertIs(node.meta["spec"]._base, self.base.meta["spec"])
        self.assertEqual(last.meta["spec"].byte_offset, 16 + 32)

    def test_what_is_refused_stays_as_it_was(self) -> None:
        column = self.g.call(aten.select_copy.int, self.base, 1, 0)
        spec, args = column.meta["spec"], column.args
        module = self.g.build(self.read(column))
        result = ReplaceSliceCopyWithSlicePass()(module)
        self.assertFalse(result.modified)
        self.assertIs(column.target, aten.select_copy.int)
        self.assertIs(column.meta["spec"], spec)
        self.assertEqual(column.args, args)

    def test_in_place_result_as_base(self) -> None:
        rows = self.g.input(2, dtype=torch.int64)
        new = self.g.input(2, 4)
        written = self.g.call(aten.index_put_.default, self.base, [rows], new)
        part = self.g.call(aten.slice_copy.Tensor, written, 0, 1, 3)
        module = self.g.build(self.read(part))
        ReplaceSliceCopyWithSlicePass()(module)
        self.assertIs(part.meta["spec"]._base, self.base.meta["spec"])

    def test_requires_an_unplanned_graph(self) -> None:
        part = self.g.call(aten.slice_copy.Tensor, self.base, 0, 1, 3)
        part.meta["spec"].mem_offset = 0
        module = self.g.build(self.read(part))
        with self.assertRaisesRegex(Exception, "planned already"):
            ReplaceSliceCopyWithSlicePass()(module)

    def test_ensures_that_no_alias_is_output(self) -> None:
        part = self.g.call(aten.slice_copy.Tensor, self.base, 0, 1, 3)
        module = self.g.build(self.read(part))
        alias_pass = ReplaceSliceCopyWithSlicePass()
        alias_pass(module)
        module.graph.output_node().args = ((part,),)
        with self.assertRaises(AssertionError):
            alias_pass.ensures(module)

    def test_empty_graph(self) -> None:
        module = GraphBuilder().build()
        self.assertFalse(ReplaceSliceCopyWithSlicePass()(module).modified)

    def test_decisions(self) -> None:
        rows = self.g.call(aten.slice_copy.Tensor, self.base, 0, 1, 3)
        column = self.g.call(aten.select_copy.int, rows, 1, 0)
        module = self.g.build(self.read(column))
        AnalyzeAliasesPass(PlannedMemory(), method="encode")(module)
        first, second = module.meta["alias_decisions"]
        self.assertEqual(
            (first.method, first.node, first.op, first.verdict, first.reason.name),
            ("encode", rows.name, "aten.slice_copy.Tensor", "alias", "SAFE"),
        )
        self.assertEqual(
            (first.nbytes, first.base, first.byte_offset), (32, self.base.name, 16)
        )
        self.assertEqual((second.verdict, second.reason.name), ("copy", "NOT_DENSE"))
        self.assertEqual((second.nbytes, second.byte_offset), (8, None))
        self.assertIn("do not lie in its base", str(second))
