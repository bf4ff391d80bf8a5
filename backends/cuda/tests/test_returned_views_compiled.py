# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Returned views, compiled by AOTInductor for the CPU and run: eager's, contiguous.

All kinds of views are outputs of one program, which is compiled once. With
``AOTI_ONE_BY_ONE=1`` each kind is compiled and run as a program of its own, too.
"""

import operator
import os
from typing import Any, Callable, Dict, List

import pytest
import torch
from cuda_testing import Compiled, CudaBackend, is_exact, lower, SPECS
from executorch.exir import EdgeCompileConfig, to_edge
from executorch_slice import disabled
from torch import nn, Tensor
from torch.export import Dim
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
Function = Callable[[Tensor], Any]
# Of a computed tensor of 4 x 6 x 8: strides are not those of a contiguous result.
STRIDED: Dict[str, Function] = {
    "last dim": lambda y: y[..., :3],
    "last dim, offset": lambda y: y[:, :, 5:],
    "middle dim": lambda y: y[:, 1:3],
    "two dims": lambda y: y[1:, 2:4],
    "step": lambda y: y[:, ::2],
    "step of dim 0": lambda y: y[1::2],
    "select last dim": lambda y: y[..., 2],
    "select middle dim": lambda y: y[:, -1],
    "select the first of the middle dim": lambda y: y[:, 0],
    "slice of a transpose": lambda y: y.transpose(0, 1)[1:3],
    "slice of a permute": lambda y: y.permute(2, 0, 1)[:, 1:],
    "slice of a select": lambda y: y[1][:, 2:5],
    "chain": lambda y: y[1:][:, 2:][..., :4],
    "chunk of the last dim": lambda y: y.chunk(2, -1),
    "split of the middle dim": lambda y: torch.split(y, 4, 1),
    "tensor_split": lambda y: y.tensor_split(3, 1),
    "narrow": lambda y: y.narrow(2, 1, 3),
    "bool": lambda y: (y > 0)[..., 1:3],
    "bfloat16": lambda y: y.bfloat16()[..., :5],
    "float16": lambda y: y.half()[:, 2:],
    "int64": lambda y: y.long()[..., 4:],
    "batch 1": lambda y: y[:1].exp()[:, 1:],
    "batch 1, select": lambda y: y[:1].exp()[..., 0],
    "all dims of size 1": lambda y: y[:1, :1].exp()[..., 2:3],
    "detach of a slice": lambda y: y[..., :3].detach(),
    "nothing": lambda y: y[..., 3:3],
    "returned and used": lambda y: (y[..., 2:4], y[..., 2:4] * 2),
    "returned with its base": lambda y: (y, y[..., 1:]),
    "nested": lambda y: {"a": [y[..., :2], (y[0], y + 1)]},
}
# Contiguous, at an offset: what Inductor takes for no copy at all.
OFFSET: Dict[str, Function] = {
    "rows": lambda y: y[1:],
    "row": lambda y: y[2],
    "last row": lambda y: y[-1],
    "last rows": lambda y: y[-2:],
    "a row of a row": lambda y: y[1, 2],
    "one element": lambda y: y[3, 5, 7],
    "chunk": lambda y: y.chunk(2),
    "split": lambda y: torch.split(y, 3),
    "split_with_sizes": lambda y: y.split_with_sizes([1, 3]),
    "unbind": lambda y: y.unbind(),
    "batch 1": lambda y: y[:1].exp()[0, 2:],
    "detach": lambda y: y[1:].detach(),
    "clone": lambda y: y[1:].clone(),
    "reshape": lambda y: y[1:].reshape(-1, 4),
    "unsqueeze": lambda y: y[3].unsqueeze(0),
    "squeeze": lambda y: y[1:2].squeeze(0),
    "nothing": lambda y: y[4:],
    "returned twice": lambda y: (y[1:], y[1:]),
}
# Right as they are, which they stay.
EXACT: Dict[str, Function] = {
    "first rows": lambda y: y[:2],
    "first row": lambda y: y[0],
    "all of it": lambda y: y[:4],
    "all of it, and its base": lambda y: (y, y[:4]),
    "split_with_sizes of the last dim": lambda y: y.split_with_sizes([3, 5], -1),
    "unbind of the middle dim": lambda y: y.unbind(1),
    "permute": lambda y: y.permute(2, 0, 1),
    "permute of rows": lambda y: y[1:].permute(2, 0, 1),
    "as_strided": lambda y: y.as_strided((2, 3), (3, 1), 5),
    "row of as_strided": lambda y: y.as_strided((2, 3), (3, 1), 5)[0],
    "slice that is used": lambda y: y[..., 1:] * y[..., :-1],
    "split that is used": lambda y: torch.add(*torch.split(y, 3, 1)),
    "detach that is used": lambda y: y.detach() + 1,
}
KINDS = {"strided": STRIDED, "offset": OFFSET, "exact": EXACT}
EACH = [(kind, name) for kind, functions in KINDS.items() for name in functions]
X = torch.arange(192.0).reshape(4, 6, 8) - 90


class OfComputed(nn.Module):
    """Each function, of a tensor of its own that the program computes."""

    def __init__(self, functions: List[Function]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, x: Tensor) -> Any:
        return [function(x * (i + 1)) for i, function in enumerate(self.functions)]


class OfMemoryOfOthers(nn.Module):
    """Views of an input, a parameter, a buffer, and a buffer that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(X * 2)
        self.register_buffer("table", X * 3)
        self.register_buffer("cache", torch.zeros(4, 6))

    def forward(self, x: Tensor) -> Any:
        self.cache[1:3] += x[:2, :, 0]
        return [
            [t[1:], t[0], t[:2], t[-1], t[..., 1:3], t[:, 2], t[1:].reshape(-1)]
            for t in (x, self.weight, self.table)
        ] + [self.cache[:2], self.cache[1], self.cache[:, 1:]]


class AllKinds(nn.Module):
    def __init__(self, detaches: bool) -> None:
        super().__init__()
        functions = [KINDS[k][n] for k, n in EACH if detaches or "detach" not in n]
        self.computed = OfComputed(functions)
        self.others = OfMemoryOfOthers()

    def forward(self, x: Tensor) -> Any:
        return self.computed(x), self.others(x)


def outputs(compiled: Compiled, *inputs: Tensor) -> List[Tensor]:
    """What the program returns; its delegate returns nothing twice."""
    values = compiled(*inputs)
    graph = compiled.lowered.graph
    return [
        values[node.args[1]]
        for node in graph.output_node().args[0]
        if node.target is operator.getitem
    ]


def assert_right(compiled: Compiled, module: nn.Module) -> None:
    """Eager's values in two calls, each in memory of its own; native kernels only."""
    assert compiled.fallbacks() == []
    calls = []
    for x in (X, X.flip(0) * 0.5):
        want = [value.clone() for value in tree_leaves(module(x))]
        got = outputs(compiled, x)
        assert len(want) == len(got)
        for a, b in zip(want, got):
            torch.testing.assert_close(b, a)  # kernels of exp may differ in a last bit
            assert is_exact(b), (b.shape, b.stride(), b.storage_offset())
        calls.append((got, [value.clone() for value in got]))
    for got, kept in calls:  # the second has not written what the first returned
        assert all(map(torch.equal, got, kept))


def test_all_kinds() -> None:
    module = AllKinds(detaches=True)
    assert_right(Compiled(lambda: lower(module, (X,))), module)


def test_all_kinds_fail_in_stock() -> None:
    """The same checks, without validity checks and detach(), which stock refuses."""
    module = AllKinds(detaches=False)
    with disabled():
        compiled = Compiled(lambda: lower(module, (X,), _check_ir_validity=False))
    right = [is_exact(output) for output in outputs(compiled, X)]
    computed, others = module(X)
    kinds = [kind for kind, name in EACH if "detach" not in name]
    for kind, value in zip(kinds, computed):
        found = [right.pop(0) for _ in tree_leaves(value)]
        assert all(found) == (kind == "exact")
    assert right.count(False) > 0


class Dynamic(nn.Module):
    """Views whose bounds are not known at lowering, and one value at two places."""

    def forward(self, x: Tensor) -> Any:
        y = x * 2
        rows, first = y[y.shape[0] // 2 :], y[:2]
        return rows, y[:, 1:3], {"again": [rows, y[-1]]}, first, first, x[1:], y[0, 2:]


def test_dynamic_shapes_and_values_returned_twice() -> None:
    """As a delegate that is the whole method, which may return a value twice."""
    module, sizes = Dynamic(), ({0: 2 * Dim("half", min=2, max=64)},)

    def lowering() -> Any:
        exported = torch.export.export(module, (X,), dynamic_shapes=sizes)
        config = EdgeCompileConfig(_skip_dim_order=True)
        edge = to_edge(exported, compile_config=config)
        return CudaBackend.preprocess(edge.exported_program(), SPECS)

    compiled = Compiled(lowering)
    assert compiled.fallbacks() == []
    for rows in (4, 6, 64):
        x = torch.randn(rows, 6, 8)
        want, got = tree_leaves(module(x)), compiled(x)
        assert len(want) == len(got) == len({b.data_ptr() for b in got})
        assert all(map(torch.equal, want, got)) and all(map(is_exact, got))


@pytest.mark.skipif("AOTI_ONE_BY_ONE" not in os.environ, reason="takes many minutes")
@pytest.mark.parametrize("kind,name", EACH)
def test_one_by_one(kind: str, name: str) -> None:
    module = OfComputed([KINDS[kind][name]])
    assert_right(Compiled(lambda: lower(module, (X,))), module)


@pytest.mark.skipif("AOTI_ONE_BY_ONE" not in os.environ, reason="takes many minutes")
def test_memory_of_others() -> None:
    module = OfMemoryOfOthers()
    assert_right(Compiled(lambda: lower(module, (X,))), module)
