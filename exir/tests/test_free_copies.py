# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Copies that keep every element where it is, op by op."""

import unittest
from typing import Any, Dict, Tuple

import torch
from alias_testing import GraphBuilder, nodes_of
from executorch.exir.dialects._ops import ops
from executorch.exir.passes import dim_order_ops_registry  # noqa: F401
from executorch.exir.tensor import TensorSpec
from executorch_slice.exir.alias_analysis import AliasAnalysis
from executorch_slice.exir.alias_copy import Copy
from executorch_slice.exir.alias_decision import Reason
from executorch_slice.exir.alias_roots import PlannedMemory
from executorch_slice.exir.passes.contiguous_bases_pass import ContiguousBasesPass
from parameterized import parameterized
from torch.fx import GraphModule, Node

aten = torch.ops.aten
dim_order_ops = torch.ops.dim_order_ops

LAST = {"memory_format": torch.channels_last}
PLAIN: Dict[str, Any] = {}

# op, its arguments, a base that it moves nothing of, and one of which it does.
OPS: Tuple[Tuple[Any, Tuple[Any, ...], Tuple[int, ...], Any], ...] = (
    (aten.unsqueeze_copy.default, (1,), (4, 6), None),
    (aten.unsqueeze_copy.default, (-1,), (4, 6), None),
    (aten.squeeze_copy.default, (), (1, 4, 1, 6), None),
    (aten.squeeze_copy.dim, (1,), (4, 1, 6), None),
    (aten.squeeze_copy.dims, ([0, -1],), (1, 4, 6, 1), None),
    (aten.permute_copy.default, ([1, 0, 2],), (1, 4, 6), (2, 4, 6)),
    (aten.transpose_copy.int, (0, 1), (1, 6), (4, 6)),
    (aten.t_copy.default, (), (4, 1), (4, 6)),
    (aten.expand_copy.default, ([4, -1],), (4, 6), (1, 6)),
    (aten.expand_copy.default, ([1, 4, 6],), (4, 6), (1, 6)),
    (aten.repeat.default, ([1, 1, 1],), (4, 6), None),
    (aten.repeat.default, ([2, 1],), (0, 6), (4, 6)),
    (aten.view_copy.default, ([6, -1],), (4, 6), None),
    (aten.reshape.default, ([6, 4],), (4, 6), None),
    (aten._reshape_copy.default, ([24],), (4, 6), None),
    (aten._unsafe_view.default, ([2, 12],), (4, 6), None),
    (aten.alias_copy.default, (), (4, 6), None),
    (aten.detach_copy.default, (), (4, 6), None),
    (aten.lift_fresh_copy.default, (), (4, 6), None),
    (aten.clone.default, (), (4, 6), None),
    (aten._to_copy.default, (), (4, 6), None),
    (aten.contiguous.default, (), (4, 6), None),
    (dim_order_ops._clone_dim_order.default, (), (4, 6), None),
    (dim_order_ops._to_dim_order_copy.default, (), (4, 6), None),
)
EDGE_OPS = (
    (ops.edge.aten.unsqueeze_copy.default, (0,)),
    (ops.edge.aten.squeeze_copy.dims, ([0],)),
    (ops.edge.aten.permute_copy.default, ([1, 0, 2],)),
    (ops.edge.aten.expand_copy.default, ([1, -1, -1],)),
    (ops.edge.aten.clone.default, ()),
    (ops.edge.aten.alias_copy.default, ()),
    (ops.edge.dim_order_ops._clone_dim_order.default, ()),
)


class TestFreeCopies(unittest.TestCase):
    def setUp(self) -> None:
        self.g = GraphBuilder()

    def base(self, *shape: int, **options: Any) -> Node:
        """A computed tensor."""
        return self.g.call(aten.neg.default, self.g.input(*shape, **options))

    def graph(self, *nodes: Node) -> GraphModule:
        return self.g.build(*[self.g.call(aten.neg.default, node) for node in nodes])

    def contiguous(self, node: Node, **options: Any) -> Node:
        """The node, with a result in that memory format."""
        value = node.meta["val"].contiguous(**options)
        node.meta["val"], node.meta["spec"] = value, TensorSpec.from_tensor(value)
        return node

    def decide(self, node: Node, memory: PlannedMemory = PlannedMemory()) -> Copy:
        return AliasAnalysis(self.graph(node), memory).copies[node]

    @parameterized.expand(OPS)
    def test_moves_nothing(self, op: Any, args: tuple, shape: tuple, _: Any) -> None:
        base = self.base(*shape)
        copy = self.decide(self.g.call(op, base, *args))
        self.assertEqual((copy.verdict, copy.reason), ("alias", Reason.SAFE))
        self.assertEqual((copy.root, copy.byte_offset), (base, 0))

    @parameterized.expand([case for case in OPS if case[3]])
    def test_moves(self, op: Any, args: tuple, _: tuple, shape: tuple) -> None:
        copy = self.decide(self.g.call(op, self.base(*shape), *args))
        self.assertEqual((copy.verdict, copy.reason), ("copy", Reason.NOT_DENSE))

    @parameterized.expand(EDGE_OPS)
    def test_edge_dialect(self, op: Any, args: tuple) -> None:
        copy = self.decide(self.g.call(op, self.base(1, 4, 6), *args))
        self.assertEqual(copy.verdict, "alias")

    @parameterized.expand([(op, args, shape) for op, args, shape, _ in OPS])
    def test_of_a_part(self, op: Any, args: tuple, shape: tuple) -> None:
        """It lies where its base does: behind the first of two rows."""
        rows = self.base(2, *shape)
        row = self.g.call(aten.select_copy.int, rows, 0, 1)
        copy = self.decide(self.g.call(op, row, *args))
        nbytes = 4 * torch.Size(shape).numel()
        self.assertEqual((copy.root, copy.byte_offset), (rows, nbytes))

    @parameterized.expand(
        [
            (aten._to_copy.default, {"dtype": torch.int64}),
            (dim_order_ops._to_dim_order_copy.default, {"dtype": torch.int64}),
            (aten.view_copy.dtype, {"dtype": torch.int32}),
        ]
    )
    def test_conversions_are_no_copies(self, op: Any, kwargs: dict) -> None:
        node = self.g.call(op, self.base(4, 6), **kwargs)
        copies = AliasAnalysis(self.graph(node), PlannedMemory()).copies
        self.assertNotIn(node, copies)

    @parameterized.expand(
        [
            ("clone", aten.clone.default, (), LAST, (2, 3, 4, 5), 0),
            (
                "H under N = 1",
                aten.slice_copy.Tensor,
                (2, 1, 3),
                LAST,
                (1, 3, 4, 5),
                60,
            ),
            ("batch", aten.slice_copy.Tensor, (0, 1, 2), LAST, (2, 3, 4, 5), 240),
            (
                "rows to NHWC",
                aten.permute_copy.default,
                ([0, 2, 3, 1],),
                PLAIN,
                (2, 3, 4, 5),
                0,
            ),
            ("unsqueeze", aten.unsqueeze_copy.default, (0,), PLAIN, (2, 3, 4, 5), None),
            ("to contiguous", aten.clone.default, (), PLAIN, (2, 3, 4, 5), None),
            (
                "H under N = 2",
                aten.slice_copy.Tensor,
                (2, 1, 3),
                LAST,
                (2, 3, 4, 5),
                None,
            ),
            ("channel", aten.slice_copy.Tensor, (1, 1, 2), LAST, (1, 3, 4, 5), None),
            ("view", aten.view_copy.default, ([2, 3, 20],), PLAIN, (2, 3, 4, 5), None),
        ]
    )
    def test_channels_last(
        self, _: str, op: Any, args: tuple, wanted: Any, shape: tuple, offset: Any
    ) -> None:
        """An alias where the region is dense in the dim order of the result."""
        node = self.g.call(op, self.base(*shape, **LAST), *args)
        copy = self.decide(self.contiguous(node, **wanted))
        self.assertEqual(copy.verdict, "copy" if offset is None else "alias")
        if offset is not None:
            self.assertEqual(copy.byte_offset, offset)

    @parameterized.expand(
        [
            (aten.slice_copy.Tensor, (2, 1, 3)),
            (aten.select_copy.int, (0, 1)),
            (aten.view_copy.default, ([2, 3, 20],)),
        ]
    )
    def test_contiguous_bases(self, op: Any, args: tuple) -> None:
        """Kernels that would fail or be wrong get a base in the result's dim order."""
        base = self.base(2, 3, 4, 5, **LAST)
        nodes = [self.contiguous(self.g.call(op, base, *args)) for _ in range(2)]
        module = self.graph(*nodes)
        self.assertTrue(ContiguousBasesPass()(module).modified)
        (conversion,) = nodes_of(module, dim_order_ops._clone_dim_order.default)
        self.assertEqual([node.args[0] for node in nodes], [conversion] * 2)
        self.assertEqual(list(conversion.meta["spec"].dim_order), [0, 1, 2, 3])

    def test_a_base_that_is_written_is_converted_each_time(self) -> None:
        base = self.base(2, 3, 4, 5, **LAST)
        first = self.contiguous(self.g.call(aten.select_copy.int, base, 0, 1))
        self.g.call(aten.neg_.default, base)
        second = self.contiguous(self.g.call(aten.select_copy.int, base, 0, 1))
        module = self.graph(first, second)
        self.assertTrue(ContiguousBasesPass()(module).modified)
        found = nodes_of(module, dim_order_ops._clone_dim_order.default)
        self.assertEqual([node.args[0] for node in (first, second)], found)

    @parameterized.expand(
        [
            (aten.permute_copy.default, ([0, 2, 3, 1],)),  # these bytes, as they lie
            (dim_order_ops._clone_dim_order.default, ()),  # a conversion itself
        ]
    )
    def test_bases_that_may_stay(self, op: Any, args: tuple) -> None:
        base = self.base(2, 3, 4, 5, **LAST)
        module = self.graph(self.contiguous(self.g.call(op, base, *args)))
        self.assertFalse(ContiguousBasesPass()(module).modified)
