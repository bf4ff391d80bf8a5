# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Whole programs, drawn by hypothesis: a list of steps that a module runs."""

import math
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Literal, Tuple

import torch
from hypothesis import strategies as st
from torch import nn, Tensor

Values = List[Tensor]


@dataclass(frozen=True)
class Step:
    """One op on earlier values; its results are appended to them."""

    op: str
    operands: Tuple[int, ...]
    arguments: Tuple[Any, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """All that a program is made from.

    Attributes:
        inputs: shape and memory format of each input.
        buffers: shape of each mutable buffer.
        constants: shape of each buffer that is never written.
        steps: in order. Values are numbered: inputs, buffers, constants, results.
        outputs: numbers of the values that are returned.
        reinplace: whether `run_reinplace_pass` is set.
        planned_io: whether inputs and outputs are memory planned.
        memory_growth: as in AliasConfig.
    """

    inputs: Tuple[Tuple[Tuple[int, ...], torch.memory_format], ...]
    buffers: Tuple[Tuple[int, ...], ...]
    constants: Tuple[Tuple[int, ...], ...]
    steps: Tuple[Step, ...]
    outputs: Tuple[int, ...]
    reinplace: bool
    planned_io: Tuple[bool, bool]
    memory_growth: Literal["never", "allow"]


def _pieces(values: Any) -> Values:
    return list(values)


# Ops by name: a function of operands and arguments. Those of two operands take equal
# shapes and dtypes.
OPS: Dict[str, Callable[..., Any]] = {
    "neg": lambda x: -x,
    "relu": torch.relu,
    "plus": lambda x, k: x + k,
    "times": lambda x, k: x * k,
    "add": torch.add,
    "sub": torch.sub,
    "cat": lambda x, y, dim: torch.cat([x, y], dim),
    "matmul": lambda x, y: x @ y.transpose(-1, -2),
    "sum": lambda x, dim: x.sum(dim, keepdim=True),
    "amax": lambda x, dim: x.amax(dim),
    "clone": torch.clone,
    "to": lambda x, dtype: x.to(dtype),
    "view": lambda x, shape: x.reshape(shape),
    "unsqueeze": torch.unsqueeze,
    "squeeze": torch.squeeze,
    "transpose": lambda x, a, b: x.transpose(a, b),
    "expand": lambda x, n: x.expand(n, *x.shape),
    "repeat": lambda x, n: x.repeat(n, *[1] * x.dim()),
    "slice": lambda x, dim, start, end, step: torch.ops.aten.slice.Tensor(
        x, dim, start, end, step
    ),
    "select": torch.select,
    "narrow": torch.narrow,
    "chunk": lambda x, n, dim: _pieces(x.chunk(n, dim)),
    "split": lambda x, size, dim: _pieces(x.split(size, dim)),
    "unbind": lambda x, dim: _pieces(x.unbind(dim)),
    "index_put": lambda x, y: torch.ops.aten.index_put(
        x, [torch.arange(x.shape[0])], y * 1
    ),
    "copy_": lambda buffer, x: buffer.copy_(x),
    "add_": lambda buffer, x: buffer.add_(x),
    "put_row_": lambda buffer, x: buffer.index_put_((torch.tensor([0]),), x[-1:]),
}
IN_PLACE = ("copy_", "add_", "put_row_")


class Program(nn.Module):
    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        for i, shape in enumerate(recipe.buffers):
            self.register_buffer(f"state_{i}", torch.zeros(shape))
        for i, shape in enumerate(recipe.constants):
            self.register_buffer(f"constant_{i}", _numbers(shape, 13 * i))

    def forward(self, *inputs: Tensor) -> Tuple[Tensor, ...]:
        values = [*inputs, *(b for _, b in self.named_buffers())]
        for step in self.recipe.steps:
            operands = [values[i] for i in step.operands]
            result = OPS[step.op](*operands, *step.arguments)
            if step.op not in IN_PLACE:
                values += result if isinstance(result, list) else [result]
        return tuple(values[i] for i in self.recipe.outputs)


def example_inputs(recipe: Recipe, round_: int = 0) -> Tuple[Tensor, ...]:
    """Inputs in which every element differs from its neighbours."""
    return tuple(
        _numbers(shape, 3 * i + 5 * round_).contiguous(memory_format=memory_format)
        for i, (shape, memory_format) in enumerate(recipe.inputs)
    )


def _numbers(shape: Tuple[int, ...], first: int) -> Tensor:
    flat = torch.arange(math.prod(shape), dtype=torch.float32)
    return ((flat * 7 + first) % 31 - 11).reshape(shape)


SHAPES = st.one_of(
    st.tuples(st.integers(1, 5), st.integers(1, 6)),
    st.tuples(st.just(1), st.integers(1, 5), st.integers(1, 6)),
    st.tuples(st.integers(1, 6)),
    st.tuples(st.sampled_from([1, 1, 2]), st.integers(1, 4), st.just(2), st.just(3)),
)


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    inputs = []
    for _ in range(draw(st.integers(1, 4))):
        shape = draw(SHAPES)
        last = len(shape) == 4 and draw(st.integers(0, 5)) == 0
        inputs.append((shape, torch.channels_last if last else torch.contiguous_format))
    buffers = tuple(draw(st.lists(SHAPES, max_size=2)))
    constants = tuple(draw(st.lists(SHAPES, max_size=2)))
    start = Recipe(
        tuple(inputs), buffers, constants, (), (), False, (True, True), "never"
    )
    values = [*example_inputs(start), *Program(start).buffers()]
    first = len(values)
    states = range(len(inputs), len(inputs) + len(buffers))
    steps: List[Step] = []
    for _ in range(draw(st.integers(5, 40))):
        step = draw(_step(values, states))
        operands = [values[i] for i in step.operands]
        result = OPS[step.op](*operands, *step.arguments)
        steps.append(step)
        if step.op not in IN_PLACE:
            values += result if isinstance(result, list) else [result]
    results = range(len(values) - 1, first - 1, -1)
    computed = [i for i in results if values[i].numel()] or [0]
    outputs = draw(st.lists(st.sampled_from(computed), min_size=1, max_size=4))
    return Recipe(
        tuple(inputs),
        buffers,
        constants,
        tuple(steps),
        tuple(dict.fromkeys([*outputs, computed[0]])),
        draw(st.booleans()),
        draw(st.sampled_from([(True, True)] * 5 + [(False, True), (False, False)])),
        draw(st.sampled_from(["never", "allow"])),
    )


@st.composite
def _step(draw: st.DrawFn, values: Values, states: range) -> Step:
    """A step that PyTorch accepts for the values there are."""
    count = len(values)
    # Late values are likelier, so that chains grow.
    at = (
        count
        - 1
        - min(draw(st.integers(0, count - 1)), draw(st.integers(0, count - 1)))
    )
    x = values[at]
    dims = st.integers(-x.dim(), x.dim() - 1) if x.dim() else st.nothing()
    same = [
        i for i, v in enumerate(values) if v.shape == x.shape and v.dtype == x.dtype
    ]
    writable = [
        i
        for i in states
        if values[i].shape == x.shape
        and values[i].untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    ]
    names = ["neg", "relu", "plus", "times", "clone", "view", "unsqueeze", "to"]
    names += ["expand", "repeat"]
    names += ["add", "sub"] if x.dtype != torch.bool else []
    if x.dim() and x.numel():
        names += ["slice", "select", "narrow", "chunk", "split", "unbind"] * 3
        names += ["sum", "amax", "transpose", "squeeze", "cat", "index_put"]
    if x.dim() == 2 and x.dtype == torch.float32 and x.numel():
        names += ["matmul"]
    if writable and x.dtype == torch.float32 and x.dim():
        names += IN_PLACE
    op = draw(st.sampled_from(names))
    if op in IN_PLACE:
        return Step(op, (draw(st.sampled_from(writable)), at))
    if op in ("add", "sub", "matmul", "index_put"):
        return Step(op, (at, draw(st.sampled_from(same))))
    if op == "cat":
        return Step(op, (at, draw(st.sampled_from(same))), (draw(dims),))
    return Step(op, (at,), draw(_arguments(op, x, dims)))


@st.composite
def _arguments(
    draw: st.DrawFn, op: str, x: Tensor, dims: st.SearchStrategy
) -> Tuple[Any, ...]:
    if op in ("plus", "times"):
        return (draw(st.integers(1, 3)),)
    if op == "to":
        return (draw(st.sampled_from([torch.float32, torch.int64, torch.int32])),)
    if op == "view":
        return (draw(_factorisations(x.numel())),)
    if op in ("expand", "repeat"):
        return (draw(st.sampled_from([1, 1, 2])),)
    if op == "unsqueeze":
        return (draw(st.integers(0, x.dim())),)
    if op == "transpose":
        return draw(dims), draw(dims)
    if op in ("neg", "relu", "clone"):
        return ()
    dim = draw(dims)
    size = x.shape[dim]
    bounds = st.integers(-size - 2, size + 2)
    if op == "slice":
        return dim, draw(bounds), draw(bounds), draw(st.sampled_from([1, 1, 1, 2, 9]))
    if op == "select":
        return dim, draw(st.integers(-size, size - 1))
    if op == "narrow":
        start = draw(st.integers(0, size - 1))
        return dim, start, draw(st.integers(1, size - start))
    if op in ("chunk", "split"):
        return draw(st.integers(1, size)), dim
    return (dim,)


@st.composite
def _factorisations(draw: st.DrawFn, numel: int) -> Tuple[int, ...]:
    divisors = [d for d in range(1, numel + 1) if numel % d == 0] or [1]
    first = draw(st.sampled_from(divisors))
    shapes = [(numel,), (first, numel // first), (1, first, numel // first)]
    return draw(st.sampled_from(shapes))
