# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""What the CUDA backend passes to AOTInductor, with and without this package."""

from typing import Any, Callable, List

import pytest
import torch
from alias_testing import arange, Fn
from cuda_testing import CudaBackend, graph_for_inductor, lower
from executorch.backends.apple.metal.metal_backend import MetalBackend
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch_slice import disabled
from executorch_slice.exir.alias_layout import overload_of
from parameterized import parameterized
from torch import Tensor
from torch.export import Dim
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves

X = arange(4, 6, 8) - 90
OURS = ["DecomposeViewsPass", "CloneReturnedViewsPass"]
VIEWS: List[Callable[[Tensor], Any]] = [
    lambda y: torch.split(y, 4, 1),
    lambda y: torch.split(y, 2),
    lambda y: torch.split(y, 5, -1),
    lambda y: y.chunk(2, -1),
    lambda y: y.unbind(1),
    lambda y: y.split_with_sizes([2, 4], 1),
    lambda y: (y.detach(), y[1:].detach()),
]


def ops(graph: GraphModule) -> List[str]:
    found = map(overload_of, graph.graph.nodes)
    return [op._schema.name for op in found if op is not None]


def passes(specs: List[CompileSpec]) -> List[str]:
    return [type(p).__name__ for p in CudaBackend.get_custom_passes(specs)]


def clones(value: bytes) -> CompileSpec:
    return CompileSpec("clone_returned_views", value)


@parameterized.expand([("dim_order", False), ("skip_dim_order", True)])
def test_views_lower_with_validity_checks(_: str, skip_dim_order: bool) -> None:
    """Returned, and used only."""

    def fn(x: Tensor) -> Any:
        bases = [(x * (i + 2), x + i) for i in range(len(VIEWS))]
        used = [[v * 2 for v in view(b)] for view, (_, b) in zip(VIEWS, bases)]
        return used, [view(b) for view, (b, _) in zip(VIEWS, bases)]

    graph = graph_for_inductor(
        lambda: lower(Fn(fn), (X,), _skip_dim_order=skip_dim_order)
    )
    assert not {"aten::split", "aten::detach_copy"} & set(ops(graph))
    assert "executorch_aoti::contiguous_copy" in ops(graph)
    got, want = tree_leaves(graph(X)), tree_leaves(fn(X))
    assert len(got) == len(want) and all(map(torch.equal, got, want))


def test_split_of_dynamic_size() -> None:
    """Without validity checks: those make sizes of a split static, in stock, too."""
    module, sizes = Fn(lambda x: (x * x).chunk(2)), (({0: 2 * Dim("half", max=32)},),)
    graph = graph_for_inductor(
        lambda: lower(module, (X,), dynamic_shapes=sizes, _check_ir_validity=False)
    )
    assert "aten::split" not in ops(graph)
    for rows in (4, 6, 64):
        x = torch.randn(rows, 6, 8)
        assert all(map(torch.equal, graph(x), module(x)))


def test_stock_refuses_a_split() -> None:
    """Fails when upstream lowers it: then say so in docs/cuda.md."""
    module = Fn(lambda x: torch.split(x * x, 2, 1))
    with disabled(), pytest.raises(RuntimeError, match="aten.split.Tensor"):
        graph_for_inductor(lambda: lower(module, (X,)))


def test_switches() -> None:
    module = Fn(lambda x: (torch.split(x * x, 2, 1), (x + 1).detach()))
    graph = graph_for_inductor(lambda: lower(module, (X,), [clones(b"OFF")]))
    assert not {"aten::split", "executorch_aoti::contiguous_copy"} & set(ops(graph))
    stock = passes([])[len(OURS) :]
    assert passes([]) == OURS + stock
    assert passes([clones(b"on")]) == OURS + stock
    assert passes([clones(b"OFF")]) == OURS[:1] + stock
    with pytest.raises(ValueError, match="clone_returned_views"):
        passes([clones(b"maybe")])
    with disabled():
        assert passes([]) == passes([clones(b"maybe")]) == stock
        module = Fn(lambda x: (x * x)[1:].detach())
        graph = graph_for_inductor(lambda: lower(module, (X,)))
        assert ops(graph) == ["aten::mul", "aten::slice", "aten::detach_copy"]


def test_class_method_stays_one() -> None:
    """As AotiBackend calls it, of the class, and of an instance."""
    class_, instance = CudaBackend, CudaBackend()
    assert list(map(type, class_.get_custom_passes([]))) == list(
        map(type, instance.get_custom_passes([]))
    )


def test_metal_is_left_alone() -> None:
    found = [type(p).__name__ for p in MetalBackend.get_custom_passes([])]
    assert found and not set(OURS) & set(found)


def test_in_tree_names() -> None:
    from executorch.backends.aoti.passes import clone_returned_views_pass as a
    from executorch_slice.backends.aoti.passes import clone_returned_views_pass as b

    assert a is b
