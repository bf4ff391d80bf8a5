# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Which nodes are copied, by which op, and that the program stays a valid one."""

import operator
from typing import Any, Callable, List, Optional, Tuple

import pytest
import torch
from alias_testing import arange, Fn
from executorch.backends.aoti.passes.replace_view_copy_with_view import (
    ReplaceViewCopyWithViewPass,
)
from executorch.exir import EdgeCompileConfig, to_edge
from executorch_slice.backends.aoti.passes.clone_returned_views_pass import (
    CloneReturnedViewsPass,
)
from executorch_slice.backends.aoti.passes.contiguous_copy import contiguous_copy
from executorch_slice.exir.alias_layout import overload_of
from parameterized import parameterized
from torch import nn, Tensor
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Node
from torch.utils._pytree import tree_leaves

X = arange(4, 6, 8) - 90
COPY, ALIAS = "executorch_aoti::contiguous_copy", "aten::alias_copy"


def with_views(
    module: nn.Module,
    inputs: Tuple[Tensor, ...] = (X,),
    skip_dim_order: bool = True,
    dynamic_shapes: Any = None,
) -> ExportedProgram:
    """An edge program after the pass of AOTI backends that makes views of copies."""
    exported = torch.export.export(module, inputs, dynamic_shapes=dynamic_shapes)
    config = EdgeCompileConfig(_skip_dim_order=skip_dim_order)
    program = to_edge(exported, compile_config=config).exported_program()
    ReplaceViewCopyWithViewPass()(program.graph_module)
    return program


def cloned(*args: Any, **kwargs: Any) -> ExportedProgram:
    program = with_views(*args, **kwargs)
    CloneReturnedViewsPass()(program)
    program.validate()
    return program


def returned(program: ExportedProgram) -> List[Any]:
    return list(program.graph.output_node().args[0])


def name_of(node: Any) -> Optional[str]:
    op = overload_of(node) if isinstance(node, Node) else None
    return None if op is None else op._schema.name


Function = Callable[[Tensor], Any]
CASES: List[Tuple[str, Function, List[Optional[str]]]] = [
    ("slice", lambda y: y[1:], [COPY]),
    ("select", lambda y: y[:, -1], [COPY]),
    ("from the start", lambda y: y[..., :3], [ALIAS]),
    ("select from the start", lambda y: y[0], [ALIAS]),
    ("two from the start", lambda y: (y[0], y[:2]), [COPY, COPY]),
    ("with its base", lambda y: (y, y[0]), ["aten::mul", COPY]),
    ("twice", lambda y: (lambda v: (v, [v]))(y[..., :3]), [COPY, COPY]),
    ("chain", lambda y: y[1:][:, :2], [COPY]),
    ("of a transpose", lambda y: y.mT[1:], [COPY]),
    ("chunk", lambda y: y.chunk(2, 1), [COPY, COPY]),
    ("unbind", lambda y: y[:2].unbind(), [COPY, COPY]),
    ("clone", lambda y: y[1:].clone(), [COPY]),
    ("clone from the start", lambda y: y[0].detach(), [ALIAS]),
    ("reshape", lambda y: y[1:].reshape(-1), [COPY]),
    ("reshape from the start", lambda y: y[:2].reshape(-1), ["aten::view_copy"]),
    ("reshape of all", lambda y: y.reshape(-1), ["aten::view_copy"]),
    ("permute of all", lambda y: y.mT, ["aten::permute_copy"]),
    (
        "as_strided",
        lambda y: y.as_strided((2, 3), (3, 1), 5),
        ["aten::as_strided_copy"],
    ),
    ("computed of a view", lambda y: y[1:] + 1, ["aten::add"]),
    ("other dtype", lambda y: y[1:].half(), [None]),
]


class EachCase(nn.Module):
    """Each function, of a tensor of its own that the program computes."""

    def forward(self, x: Tensor) -> Any:
        return [fn(x * (i + 2)) for i, (_, fn, _) in enumerate(CASES)]


@parameterized.expand([("dim_order", False), ("skip_dim_order", True)])
def test_copies(_: str, skip_dim_order: bool) -> None:
    before = with_views(EachCase(), skip_dim_order=skip_dim_order)
    after = cloned(EachCase(), skip_dim_order=skip_dim_order)
    names = [name_of(node) for node in returned(after)]
    for case, _fn, ops in CASES:
        found = [names.pop(0) for _op in ops]
        assert all(op in (None, name) for op, name in zip(ops, found)), (case, found)
    assert not names
    outputs = [program.graph_signature.user_outputs for program in (before, after)]
    nodes = [len(program.graph.nodes) for program in (before, after)]
    assert nodes[1] - nodes[0] == sum(map(operator.ne, *outputs))
    check_signature(before, after)
    for got, want in zip(tree_leaves(after.module()(X)), tree_leaves(EachCase()(X))):
        assert torch.equal(got, want)


def check_signature(before: ExportedProgram, after: ExportedProgram) -> None:
    """As before, but for the names of copies, which are contiguous."""
    signatures = [program.graph_signature for program in (before, after)]
    assert signatures[0].input_specs == signatures[1].input_specs
    for old, new, was, is_ in zip(
        *(signature.output_specs for signature in signatures),
        *map(returned, (before, after)),
    ):
        assert (old.kind, old.target) == (new.kind, new.target)
        if not isinstance(is_, Node):
            assert (old, was) == (new, is_)
            continue
        assert new.arg.name == is_.name
        old_value, value = was.meta["val"], is_.meta["val"]
        if isinstance(value, Tensor):
            assert (old_value.shape, old_value.dtype) == (value.shape, value.dtype)
            assert name_of(is_) != COPY or value.stride() == old_value.stride()


class Cache(nn.Module):
    """Writes a buffer, and returns parts of all kinds of memory."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(X * 2)
        self.register_buffer("cache", torch.zeros(4, 6))

    def forward(self, x: Tensor) -> Any:
        self.cache[1:3] = x[:2, :, 0]
        return self.cache[:2], self.weight[:2], x[:2], x.sum(), self.cache


def test_memory_of_others() -> None:
    """Even what starts at their start: the caller must not get hold of it."""
    before, after = with_views(Cache()), cloned(Cache())
    kinds = [spec.kind for spec in after.graph_signature.output_specs]
    assert kinds.count(OutputKind.BUFFER_MUTATION) == 1
    check_signature(before, after)
    names = [name_of(node) for node in returned(after)]
    assert names[1:4] == [COPY] * 3
    mutation = kinds.index(OutputKind.BUFFER_MUTATION)
    assert returned(before)[mutation].name == returned(after)[mutation].name


def test_what_is_used_stays_a_view() -> None:
    program = cloned(Fn(lambda x: (lambda v: (v, v * 2, x[2:] + 1))((x * x)[1:])))
    views = [n for n in program.graph.nodes if name_of(n) == "aten::slice"]
    users = [sorted(str(name_of(user)) for user in view.users) for view in views]
    assert users == [["aten::mul", COPY], ["aten::add"]]
    assert sum(name_of(node) == COPY for node in program.graph.nodes) == 1


def test_dynamic_sizes_and_values_that_are_no_tensors() -> None:
    sizes = (({0: Dim("n", min=3, max=64)},),)
    module = Fn(lambda x: (x[1:], x.shape[0], None, 3, (x + 1)[: x.shape[0] - 1]))
    before = with_views(module, dynamic_shapes=sizes)
    after = cloned(module, dynamic_shapes=sizes)
    check_signature(before, after)
    assert [name_of(returned(after)[i]) for i in (0, -1)] == [COPY, ALIAS]
    for rows in (4, 5, 64):
        x = torch.randn(rows, 6, 8)
        got, want = tree_leaves(after.module()(x)), tree_leaves(module(x))
        assert len(got) == len(want)
        for a, b in zip(got, want):
            assert torch.equal(a, b) if isinstance(b, Tensor) else a == b


def test_channels_last_clone_keeps_its_layout() -> None:
    module = Fn(lambda x: (x * x)[1:].clone(memory_format=torch.channels_last))
    program = cloned(module, (torch.randn(3, 4, 5, 6),))
    assert name_of(returned(program)[0]) == "aten::clone"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool])
@pytest.mark.parametrize("shape", [(4, 6), (1, 6), (0, 6), ()])
def test_the_op(dtype: torch.dtype, shape: Tuple[int, ...]) -> None:
    x = torch.ones(*shape, 3).to(dtype)[..., 1]
    copy = contiguous_copy(x)
    assert torch.equal(copy, x) and copy.storage_offset() == 0
    assert copy.stride() == torch.empty(shape).stride()
