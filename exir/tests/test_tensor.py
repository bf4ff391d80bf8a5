# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

import unittest
from itertools import product

import torch
from executorch.exir import tensor
from executorch_slice import disabled
from torch.export import Dim, export


class Sum(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x


class TestDimOrder(unittest.TestCase):
    def test_static_strides(self) -> None:
        for rank in range(5):
            for stride in product((1, 2, 3, 6), repeat=rank):
                ours = tensor.dim_order_from_stride(stride)
                with disabled():
                    self.assertEqual(ours, tensor.dim_order_from_stride(stride))

    def test_symbolic_strides(self) -> None:
        x = torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)
        program = export(Sum(), (x,), dynamic_shapes=({2: Dim("h", max=8)},))
        (node,) = (n for n in program.graph.nodes if n.op == "call_function")
        stride = node.meta["val"].stride()
        self.assertIsInstance(stride[0], torch.SymInt)
        self.assertEqual(tensor.dim_order_from_stride(stride), (0, 2, 3, 1))

    def test_zero_is_refused(self) -> None:
        with self.assertRaisesRegex(RuntimeError, "0 in strides"):
            tensor.dim_order_from_stride((0, 1))
