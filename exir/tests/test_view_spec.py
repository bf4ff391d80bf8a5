# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

import unittest

import torch
from executorch.exir.passes import replace_view_copy_with_view_pass as upstream
from executorch.exir.tensor import TensorSpec
from executorch_slice.exir.passes.replace_view_copy_with_view_pass import _ViewSpec
from parameterized import parameterized


def spec_of(*shape: int, dtype: torch.dtype = torch.float32) -> TensorSpec:
    return TensorSpec(dtype, torch.Size(shape))


class TestViewSpec(unittest.TestCase):
    def test_it_is_the_class_that_upstream_uses(self) -> None:
        self.assertIs(upstream._ViewSpec, _ViewSpec)

    def test_whole_view_has_the_bytes_of_its_base(self) -> None:
        base = spec_of(4, 6)
        view = _ViewSpec(base, [24])
        self.assertEqual(view.byte_offset, 0)
        self.assertIsNone(view.mem_offset)
        base.mem_id, base.mem_offset = 1, 64
        self.assertEqual((view.mem_id, view.mem_offset), (1, 64))
        with self.assertRaisesRegex(Exception, "nbytes"):
            _ViewSpec(base, [23])

    def test_range_follows_its_root(self) -> None:
        base = spec_of(4, 6)
        part = _ViewSpec(base, [2, 6], byte_offset=48)
        self.assertIsNone(part.mem_offset)
        for offset in (0, 160):
            base.mem_offset = offset
            self.assertEqual(part.mem_offset, offset + 48)
        part.mem_offset = 100
        self.assertEqual(base.mem_offset, 52)
        part.mem_offset = None
        self.assertIsNone(base.mem_offset)

    def test_shared_fields_are_the_roots(self) -> None:
        base = spec_of(4, 6)
        part = _ViewSpec(base, [6], byte_offset=24)
        part.lifetime = [1, 5]
        base.mem_id = 3
        self.assertEqual((base.lifetime, part.mem_id), ([1, 5], 3))
        self.assertEqual((part.nbytes(), part.allocated_memory), (24, 32))
        self.assertEqual((part.shape, part.stride, part.dim_order), ([6], (1,), (0,)))

    def test_chain_is_flattened(self) -> None:
        root = spec_of(8, 4)
        rows = _ViewSpec(root, [4, 4], byte_offset=64)
        flat = _ViewSpec(rows, [16])
        last = _ViewSpec(flat, [2], byte_offset=8)
        for spec, offset in ((rows, 64), (flat, 64), (last, 72)):
            self.assertIs(spec._base, root)
            self.assertEqual(spec.byte_offset, offset)
        root.mem_offset = 16
        self.assertEqual(last.mem_offset, 88)

    @parameterized.expand(
        [
            ("past the end", [2, 6], 52),
            ("negative", [2, 6], -4),
            ("larger than the base", [5, 6], 0),
        ]
    )
    def test_range_outside_its_base(self, _name: str, shape: list, start: int) -> None:
        with self.assertRaisesRegex(ValueError, "do not lie within the 96 bytes"):
            _ViewSpec(spec_of(4, 6), shape, byte_offset=start)

    def test_range_is_bounded_by_its_direct_base(self) -> None:
        rows = _ViewSpec(spec_of(8, 4), [2, 4], byte_offset=32)
        with self.assertRaisesRegex(ValueError, "within the 32 bytes"):
            _ViewSpec(rows, [2, 4], byte_offset=16)
        with self.assertRaisesRegex(ValueError, "give the byte_offset"):
            _ViewSpec(rows, [7])

    def test_empty_ranges(self) -> None:
        self.assertEqual(_ViewSpec(spec_of(4, 6), [0, 6], byte_offset=0).nbytes(), 0)
        self.assertEqual(_ViewSpec(spec_of(0, 6), [0], byte_offset=0).nbytes(), 0)

    def test_part_of_a_constant(self) -> None:
        base = spec_of(4)
        base.const = True
        self.assertTrue(_ViewSpec(base, [2, 2]).const)
        with self.assertRaisesRegex(ValueError, "constant"):
            _ViewSpec(base, [2], byte_offset=8)

    def test_part_of_what_becomes_a_constant_later(self) -> None:
        """Emission gives a mutable buffer with initial state const=True."""
        base = spec_of(4)
        part, whole = _ViewSpec(base, [2], byte_offset=8), _ViewSpec(base, [2, 2])
        base.const, base.storage = True, torch.zeros(4).untyped_storage()
        self.assertEqual((part.const, whole.const), (False, True))
        self.assertIsNone(part.storage)
        self.assertIsNone(part.extra_tensor_info)

    def test_dim_order(self) -> None:
        part = _ViewSpec(spec_of(2, 3, 4), [3, 4], byte_offset=48, dim_order=(1, 0))
        self.assertEqual((part.stride, part.dim_order), ((1, 3), (1, 0)))

    def test_guards_still_watch(self) -> None:
        base = spec_of(4, 6)
        part = _ViewSpec(base, [2, 6], byte_offset=48)
        base.is_sparse = True
        with self.assertRaisesRegex(Exception, "is_sparse"):
            part.mem_offset
        base.is_sparse = False
        part.shape = [4, 6]
        with self.assertRaisesRegex(Exception, "Guard shape"):
            part.nbytes()
