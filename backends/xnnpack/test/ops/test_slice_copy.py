# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Slices of any step in XNNPACK delegates: eager's numbers, and reasons if refused."""

import os
import subprocess
import sys
import unittest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Callable, List, Optional, Tuple
from unittest import mock

import torch
from alias_testing import arange, Fn
from executorch.backends.xnnpack import xnnpack_preprocess
from executorch.backends.xnnpack.partition.config import generic_node_configs
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import EdgeProgramManager, to_edge_transform_and_lower
from executorch_slice import disabled
from executorch_slice.compare import LoadedProgram
from hypothesis import given, HealthCheck, settings, strategies as st
from parameterized import parameterized
from torch import nn, Tensor
from torch.export import Dim

aten = torch.ops.aten
quantized = torch.ops.quantized_decomposed
STEPS = (1, 2, 3, 5, 7, 9, 64)
BOUNDS = ((None, None), (1, None), (-3, -1), (-99, 4), (2, 99))
COMPOSED_OF = {
    "XNNStaticConstantPad",
    "XNNStaticReshape",
    "XNNStaticSlice",
    "XNNStaticTranspose",
}


def slice_of(x: Tensor, dim: int, bounds: Tuple[Any, Any, int]) -> Tensor:
    return aten.slice.Tensor(x, dim, *bounds)


def through_int8(x: Tensor, scale: float, zero_point: int = 0) -> Tensor:
    parameters = (scale, zero_point, -128, 127, torch.int8)
    x = quantized.quantize_per_tensor.default(x, *parameters)
    return quantized.dequantize_per_tensor.default(x, *parameters)


def lower(
    module: nn.Module,
    inputs: Tuple[Tensor, ...],
    dynamic_shapes: Any = None,
    **options: Any,
) -> EdgeProgramManager:
    return to_edge_transform_and_lower(
        torch.export.export(module, inputs, dynamic_shapes=dynamic_shapes),
        partitioner=[XnnpackPartitioner(**options)],
    )


def targets(edge: EdgeProgramManager) -> List[str]:
    return [str(n.target) for n in edge.exported_program().graph.nodes]


def delegates(edge: EdgeProgramManager) -> int:
    return targets(edge).count("executorch_call_delegate")


def slices(edge: EdgeProgramManager) -> int:
    return sum("slice_copy" in target for target in targets(edge))


def assert_one_delegate(
    module: nn.Module, inputs: Tuple[Tensor, ...], exact: bool = True
) -> None:
    """All of `module` is one delegate call, which computes what eager does, twice."""
    edge = lower(module, inputs)
    assert (delegates(edge), slices(edge)) == (1, 0), targets(edge)
    program = LoadedProgram(edge.to_executorch())
    for values in (inputs, tuple(x.flip(0) for x in inputs)):
        want, got = module(*values), program(*values)
        for a, b in zip(got, [want] if isinstance(want, Tensor) else want):
            assert torch.equal(a, b) if exact else torch.allclose(a, b, atol=1e-5)


def serialized(module: nn.Module, *inputs: Tensor) -> List[str]:
    """The kinds of the nodes in the delegate that `module` becomes."""
    graphs = []

    def keep(graph: Any, constants: Any) -> bytes:
        graphs.append(graph)
        return serialize(graph, constants)

    serialize = xnnpack_preprocess.serialize_xnnpack_binary
    with mock.patch.object(xnnpack_preprocess, "serialize_xnnpack_binary", keep):
        lower(module, inputs)
    (graph,) = graphs
    return [type(node.xnode_union).__name__ for node in graph.xnodes]


SHAPES: List[Tuple[int, ...]] = [(12,), (7, 6), (3, 8, 5)]
DIMS = [(shape, dim) for shape in SHAPES for dim in range(len(shape))]
DIMS += [((2, 3, 2, 7), 3), ((2, 12, 3, 2), 1), ((2, 1, 3, 2, 9), 4)]
DIMS += [((2, 1, 2, 9, 2, 3), 3), ((2, 1, 2, 2, 3, 10), 5), ((11, 1), 0)]


class TestSliceCopy(unittest.TestCase):
    @parameterized.expand(DIMS)
    def test_steps_and_bounds(self, shape: Tuple[int, ...], dim: int) -> None:
        bounds = [
            (start, end, step)
            for step in STEPS
            for start, end in BOUNDS
            if range(shape[dim])[start:end:step]
        ]

        def every_slice(x: Tensor) -> Tuple[Tensor, ...]:
            """Of an input, and of a value that the delegate computes."""
            return tuple(slice_of(v, dim, b) for v in (x, x * 0.5) for b in bounds)

        assert_one_delegate(Fn(every_slice), (arange(*shape),))

    def test_like_step_1(self) -> None:
        for fn in (lambda x: x[:, 0:14], lambda x: x[:, 0:28:2]):
            assert_one_delegate(Fn(fn), (arange(1, 28, 28, 96),))

    def test_half(self) -> None:
        x = torch.randn(6, 9).half()
        assert_one_delegate(Fn(lambda x: (x[1::2], x[:, ::4] + 1, x[:, 1::3])), (x,))

    def test_values_that_nothing_may_change(self) -> None:
        x = torch.tensor([torch.nan, -torch.inf, torch.inf, -0.0, 0.0, 1e-40, -1e38])
        edge = lower(Fn(lambda x: (x[::2], x[1::3])), (x,))
        got = LoadedProgram(edge.to_executorch())(x)
        for a, b in zip(got, (x[::2], x[1::3])):
            self.assertTrue(torch.equal(a.view(torch.int32), b.view(torch.int32)))

    @parameterized.expand([0, 1, 2, 3])
    def test_channels_last(self, dim: int) -> None:
        class ConvSlice(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.conv = nn.Conv2d(3, 6, 3)
                self.after = nn.Conv2d(6, 2, 1)

            def forward(self, x: Tensor) -> Any:
                y = self.conv(x)
                parts = [
                    slice_of(y, dim, b) for b in ((0, 99, 2), (1, 99, 2), (1, 4, 3))
                ]
                again = parts[0] if dim == 1 else self.after(parts[0])
                return (*parts, again)

        assert_one_delegate(ConvSlice().eval(), (torch.randn(5, 3, 9, 8),), exact=False)

    def test_values_are_shared(self) -> None:
        def fn(x: Tensor, y: Tensor) -> Any:
            z = x + y
            part = z[:, 1::2]
            return part, part * 2, z, x[::3] + y[::3]

        assert_one_delegate(Fn(fn), (arange(6, 8), arange(6, 8)))

    @parameterized.expand(
        [
            ((1, 8, 6, 4), (1, 2), 2),
            ((12, 2, 9, 1, 5), (0, 2), 3),
            ((1, 8, 3, 6, 2), (1, 3), 2),
        ]
    )
    def test_slices_of_two_dims(
        self, shape: Tuple[int, ...], dims: Tuple[int, int], step: int
    ) -> None:
        """One slice takes both, though each is a node, and half of them twice."""

        def merge(x: Tensor) -> Tensor:
            x = x.neg()
            parts = [
                slice_of(slice_of(x, dims[0], (i, 99, 2)), dims[1], (j, 99, step))
                for j in range(step)
                for i in (0, 1)
            ]
            return torch.cat(parts, -1)

        assert_one_delegate(Fn(merge), (arange(*shape),))
        kinds = serialized(Fn(merge), arange(*shape))
        self.assertEqual(kinds.count("XNNStaticSlice"), 2 * step)
        self.assertLessEqual(kinds.count("XNNStaticReshape"), 1 + 2 * step)

    def test_slices_of_two_dims_and_other_readers(self) -> None:
        def fn(x: Tensor) -> Any:
            x = x.neg()
            rows, also = x[::2], x[1::2]
            return rows[:, ::2] + 1, rows[:, 1::4], also[:, ::2], also.neg()

        assert_one_delegate(Fn(fn), (arange(8, 12, 3),))

    @parameterized.expand(
        [
            ("whole groups", lambda x: x[::2, 1:], ["XNNStaticReshape"]),
            ("trimmed", lambda x: x[1:8:2, 1:], ["XNNStaticReshape"]),
            ("one", lambda x: x[::64, 1:], []),
        ]
    )
    def test_composed_of(
        self, _: str, fn: Callable[[Tensor], Tensor], kinds: List[str]
    ) -> None:
        found = serialized(Fn(fn), arange(8, 6))
        self.assertLessEqual(set(found), COMPOSED_OF)
        self.assertEqual([k for k in found if k != "XNNStaticSlice"], kinds)

    def test_int8(self) -> None:
        def fn(x: Tensor) -> Tensor:
            for bounds, dim in (
                ((None, None, 2), 0),
                ((1, None, 3), 1),
                ((0, 3, 2), 1),
            ):
                x = slice_of(through_int8(x, 0.25, 3), dim, bounds)
            return through_int8(x, 0.25, 3)

        assert_one_delegate(Fn(fn), (torch.randn(9, 16),))

    def test_bounds_below_the_start(self) -> None:
        x = arange(6, 4)
        fn = Fn(lambda x: (x[-99:2], x[-7:2], x[..., -9:3]))
        assert_one_delegate(fn, (x,))
        # Fails when upstream clamps: then say so in docs/xnnpack.md.
        with disabled(), self.assertRaises(subprocess.CalledProcessError):
            lower(fn, (x,))

    def test_switches(self) -> None:
        strided, plain = Fn(lambda x: x[::2] + 1), Fn(lambda x: x[1:] + 1)
        x = arange(6, 4)
        with disabled():
            self.assertEqual(slices(lower(strided, (x,))), 1)
        self.assertEqual(slices(lower(strided, (x,), strided_slices=False)), 1)
        self.assertEqual(slices(lower(plain, (x,), strided_slices=False)), 0)

    def test_a_stock_process_runs_it(self) -> None:
        x = arange(7, 8)
        fn = Fn(lambda x: (x[::3, 1::2] * 2, (x + 1)[:, ::7]))
        code = (
            "import sys, torch\n"
            "from executorch.extension.pybindings import portable_lib\n"
            "assert 'executorch_slice' not in sys.modules\n"
            "load = portable_lib._load_for_executorch_from_buffer\n"
            "x = torch.arange(56.0).reshape(7, 8)\n"
            "print([y.tolist() for y in load(open(sys.argv[1], 'rb').read())([x])])"
        )
        with TemporaryDirectory() as folder:
            path = Path(folder, "program.pte")
            path.write_bytes(lower(fn, (x,)).to_executorch().buffer)
            got = subprocess.run(
                [sys.executable, "-c", code, str(path)],
                env=dict(os.environ, TORCH_DEVICE_BACKEND_AUTOLOAD="0"),
                capture_output=True,
                text=True,
                check=True,
            )
        self.assertEqual(eval(got.stdout), [y.tolist() for y in fn(x)])


class PerChannel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scales = torch.tensor([0.25, 0.5, 0.75, 1.0])
        self.zeros = torch.zeros(4, dtype=torch.int64)

    def forward(self, x: Tensor) -> Tensor:
        parameters = (self.scales, self.zeros, 1, -128, 127, torch.int8)
        x = quantized.quantize_per_channel.default(x, *parameters)
        x = quantized.dequantize_per_channel.default(x, *parameters)
        x = quantized.quantize_per_channel.default(x[:, :, ::2], *parameters)
        return quantized.dequantize_per_channel.default(x, *parameters)


N = Dim("n", min=4, max=99)
REFUSALS = [
    ("dynamic shape", Fn(lambda x: x[::2]), arange(8, 4), "dynamic shape", {0: N}),
    ("bound", Fn(lambda x: x[:, : x.shape[0]]), arange(8, 100), "bounds", {0: N}),
    ("zero size", Fn(lambda x: x[3:3]), arange(8, 4), "zero-size dim", None),
    ("rank", Fn(lambda x: x[::2]), arange(4, 1, 1, 1, 1, 1, 2), "7 dims", None),
    ("dtype", Fn(lambda x: x[::2]), arange(8, 4).long(), "torch.int64", None),
    (
        "quantization",
        Fn(lambda x: through_int8(through_int8(x, 0.25)[::2], 0.5)),
        arange(8, 4),
        "different quantization parameters",
        None,
    ),
    ("channels", PerChannel(), arange(1, 4, 3), "mix channels", None),
]


@parameterized.expand(REFUSALS)
def test_refusals_say_why(
    _: str, module: nn.Module, x: Tensor, why: str, dynamic: Optional[Any]
) -> None:
    shapes = None if dynamic is None else ((dynamic,),)
    case = unittest.TestCase()
    with case.assertLogs(generic_node_configs.logger, "DEBUG") as logs:
        edge = lower(module, (x,), shapes)
    assert slices(edge) == 1
    assert any("slice_copy" in line and why in line for line in logs.output), logs


@st.composite
def sliced(draw: Any) -> Any:
    """Shape, two slices, dtype, and whether something stands before and after them."""
    shape = draw(st.lists(st.integers(1, 12), min_size=1, max_size=6))
    bound = st.none() | st.integers(-12, 12)
    steps = st.integers(1, 4) | st.integers(5, 12)
    slices = [
        (draw(st.integers(0, len(shape) - 1)), (draw(bound), draw(bound), draw(steps)))
        for _ in range(2)
    ]
    around = (draw(st.booleans()), draw(st.booleans()))
    dtype = draw(st.sampled_from([torch.float32, torch.float16]))
    return shape, slices, dtype, around


@settings(
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", "15")),
    deadline=None,
    derandomize="FUZZ_EXAMPLES" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
@given(sliced())
def test_any_slices(case: Any) -> None:
    shape, slices, dtype, (before, after) = case

    def fn(x: Tensor) -> Any:
        y = x.neg() if before else x
        first = slice_of(y, *slices[0])
        both = slice_of(first, *slices[1])
        other = slice_of(y, slices[0][0], (None, None, 2))
        results = (both, slice_of(other, *slices[1]), slice_of(y, *slices[1]))
        return tuple(r.abs() if after else r + 0 for r in results)

    x = arange(*shape).to(dtype)
    if all(result.numel() for result in fn(x)):
        got = LoadedProgram(lower(Fn(fn), (x,)).to_executorch())(x)
        assert all(map(torch.equal, got, fn(x)))
