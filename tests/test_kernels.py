# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""et_slice and et_select in programs that are run, against eager PyTorch."""

from typing import Any, Tuple

import pytest
import torch
from alias_testing import arange, assert_equals_eager
from et_slice_programs import Edit, et_slice_program, stock_program, with_et_slice
from executorch.exir.schema import ExecutionPlan, KernelCall
from executorch.exir.tensor import ScalarType
from executorch_slice.compare import LoadedProgram
from torch import Tensor
from torch.export import Dim

pytestmark = pytest.mark.usefixtures("kernels")

INVALID_ARGUMENT, NOT_SUPPORTED = "0x12", "0x10"
ROWS = {0: Dim("rows", min=7, max=16)}


@pytest.fixture(scope="module")
def two_rows() -> bytes:
    return stock_program(lambda x: x[1:3] + 1, (arange(8, 4),))


def many(x: Tensor) -> Tuple[Tensor, ...]:
    y = x * 2
    return tuple(
        part + 1
        for part in (
            *(x[1:-1], x[2:99], x[-99:2], x[99:100], x[-3:], x[5:2], x[:]),
            *(y[-2:], y[: x.shape[0] - 1], y[1:-1][1:]),
            *(y.unsqueeze(0)[:, 2:7], y.unsqueeze(0)[:, :, 0:99], y[:, 3:1]),
        )
    )


@pytest.mark.parametrize("planned", [True, False])
def test_every_size(planned: bool) -> None:
    program = LoadedProgram(et_slice_program(many, (arange(8, 3),), (ROWS,), planned))
    for rows in (8, 16, *range(7, 17), 7):
        assert_equals_eager(program, many, torch.rand(rows, 3))


def test_sizes_down_to_zero() -> None:
    def fn(x: Tensor) -> Tuple[Tensor, ...]:
        y = x * 2
        return x[3:] + 1, y[2:-1] + 1, y[: x.shape[0] - 1] + 1, x[:-2][1:] + 1

    program = LoadedProgram(et_slice_program(fn, (arange(8, 3),), (ROWS,)))
    for rows in (16, 0, 7, *range(17), 0):  # the runtime knows no lower bound
        assert_equals_eager(program, fn, torch.rand(rows, 3))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.half, torch.double])
def test_every_item_size(dtype: torch.dtype) -> None:
    def fn(x: Tensor) -> Tuple[Tensor, ...]:
        return torch.cat([x[3:5], x[:1]]), x[1].view(3, 1)[1:].view(1, 2).clone()

    x = arange(6, 3).to(dtype)
    assert_equals_eager(LoadedProgram(et_slice_program(fn, (x,))), fn, x)


def test_select() -> None:
    def fn(x: Tensor) -> Tuple[Tensor, ...]:
        y = x * 2
        return x[0] + 1, y[-1] + 1, y[2][3] + 1, x.unsqueeze(0)[:, 1] + 1

    rows = {0: Dim("rows", min=3, max=9)}
    program = LoadedProgram(et_slice_program(fn, (arange(5, 4),), (rows,)))
    for count in range(3, 10):
        assert_equals_eager(program, fn, torch.rand(count, 4))


def test_ints_that_are_known_at_run_time() -> None:
    def fn(x: Tensor, index: Tensor) -> Tuple[Tensor, ...]:
        i = index.item()
        torch._check(i >= 0)
        torch._check(i < 5)
        return x.select(0, i) + 1, x.narrow(0, i, 3) + 1

    program = LoadedProgram(et_slice_program(fn, (arange(8, 2), torch.tensor(1))))
    for index in (4, 0, 2):
        assert_equals_eager(program, fn, arange(8, 2), torch.tensor(index))


def test_constants() -> None:
    class Table(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", arange(16, 3))

        def forward(self, x: Tensor) -> Tuple[Tensor, ...]:
            return self.table[: x.shape[0]] + x, self.table[4:6] * 2, self.table[7] * 2

    module = Table()
    rows = {0: Dim("rows", min=2, max=16)}
    program = LoadedProgram(et_slice_program(module, (arange(4, 3),), (rows,)))
    for count in (4, 16, 2, 4):
        assert_equals_eager(program, module, arange(count, 3))


def test_operands_and_results_of_control_flow() -> None:
    def fn(p: Tensor, x: Tensor) -> Tensor:
        rows = torch.cond(p, lambda v: v[1:4] * 2, lambda v: v[:3] + 1, (x,))
        return rows[1:] - 1

    program = LoadedProgram(et_slice_program(fn, (torch.tensor(True), arange(5, 2))))
    for p in (True, False, True):
        assert_equals_eager(program, fn, torch.tensor(p), torch.rand(5, 2))


def test_channels_last() -> None:
    def fn(x: Tensor) -> Tensor:
        return x[1:3].relu()

    def keep_dim_order(plan: ExecutionPlan, call: KernelCall) -> None:
        for value in plan.values:
            if getattr(value.val, "dim_order", None):
                value.val.dim_order = [0, 2, 3, 1]

    x = (arange(4, 3, 2, 5) - 30).to(memory_format=torch.channels_last)
    stock = stock_program(fn, (x,))
    program = LoadedProgram(with_et_slice(stock, keep_dim_order))
    assert_equals_eager(program, fn, x)


def test_a_program_runs_on_after_an_error(capfd: pytest.CaptureFixture) -> None:
    def fn(x: Tensor) -> Tensor:
        return (x * 2)[:, 1:3] + 1

    program = LoadedProgram(et_slice_program(fn, (arange(8, 4),), (ROWS,)))
    for rows in (1, 2, 1, 16, 0, 1):
        if rows < 2:
            assert_equals_eager(program, fn, torch.rand(rows, 4))
            continue
        with pytest.raises(RuntimeError, match=INVALID_ARGUMENT):
            program(torch.rand(rows, 4))
        assert f"in each of {rows} rows do not lie together" in capfd.readouterr().err


def out_field(name: str, value: Any) -> Edit:
    def edit(plan: ExecutionPlan, call: KernelCall) -> None:
        setattr(plan.values[call.args[-1]].val, name, value)

    return edit


def argument(position: int, value: int) -> Edit:
    def edit(plan: ExecutionPlan, call: KernelCall) -> None:
        plan.values[call.args[position]].val.int_val = value  # type: ignore[union-attr]

    return edit


def widen(plan: ExecutionPlan, call: KernelCall) -> None:
    out: Any = plan.values[call.args[-1]].val
    out.sizes, out.dim_order = [2, 4, 1], [0, 1, 2]


@pytest.mark.parametrize(
    "edit, error, message",
    [
        (out_field("scalar_type", ScalarType.INT), INVALID_ARGUMENT, "dtype 6, out"),
        (out_field("dim_order", [1, 0]), INVALID_ARGUMENT, "another order in memory"),
        (out_field("sizes", [1, 4]), NOT_SUPPORTED, ""),
        (widen, INVALID_ARGUMENT, "self has 2 dims, out has 3"),
        (argument(1, 2), INVALID_ARGUMENT, "dim 2 is out of range"),
        (argument(4, 0), INVALID_ARGUMENT, "step 0 is not positive"),
        (argument(4, -1), INVALID_ARGUMENT, "step -1 is not positive"),
        (argument(3, 5), NOT_SUPPORTED, ""),
    ],
)
def test_wrong_programs_fail(
    edit: Edit,
    error: str,
    message: str,
    two_rows: bytes,
    capfd: pytest.CaptureFixture,
) -> None:
    program = LoadedProgram(with_et_slice(two_rows, edit))
    for _ in range(2):
        with pytest.raises(RuntimeError, match=error):
            program(arange(8, 4))
        assert message in capfd.readouterr().err


def test_strided_slice_fails(capfd: pytest.CaptureFixture) -> None:
    program = LoadedProgram(et_slice_program(lambda x: x[::3] + 1, (arange(8, 4),)))
    with pytest.raises(RuntimeError, match=INVALID_ARGUMENT):
        program(arange(8, 4))
    assert "3 of 8 elements of dim 0 (step 3)" in capfd.readouterr().err


def test_index_past_the_end_fails(capfd: pytest.CaptureFixture) -> None:
    stock = stock_program(lambda x: x[7] + 1, (arange(8, 4),))
    program = LoadedProgram(with_et_slice(stock, argument(2, 8)))
    with pytest.raises(RuntimeError, match=INVALID_ARGUMENT):
        program(arange(8, 4))
    assert "index 8 is out of range for dim 0 of size 8" in capfd.readouterr().err
