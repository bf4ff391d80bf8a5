# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""What a lowered program costs, as its schema tells it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from executorch.exir import ExecutorchProgramManager
from executorch.exir.schema import ExecutionPlan, KernelCall, Tensor, TensorList
from executorch_slice.arena_layout import tensor_nbytes

SLICE_FAMILY = frozenset(
    {
        "narrow_copy",
        "select_copy",
        "slice_copy",
        "split_copy",
        "split_with_sizes_copy",
        "unbind_copy",
    }
)
VIEW_FAMILY = frozenset(
    {
        "_clone_dim_order",
        "alias_copy",
        "clone",
        "detach_copy",
        "expand_copy",
        "lift_fresh_copy",
        "permute_copy",
        "repeat",
        "squeeze_copy",
        "t_copy",
        "transpose_copy",
        "unsqueeze_copy",
        "view_copy",
    }
)


@dataclass(frozen=True)
class ProgramCost:
    """Costs of a program, over all its methods.

    Attributes:
        instructions: instructions of any kind, those in a loop counted once.
        slice_instructions: those that call a kernel of the slice family.
        view_instructions: those that call a kernel of the view family, which may
            move data (a permute) or none (a squeeze).
        bytes_copied: bytes that both families write in one inference, at the upper
            bound of dynamic sizes.
        arena_bytes: planned memory.
        pte_bytes: size of the `.pte`.
    """

    instructions: int
    slice_instructions: int
    view_instructions: int
    bytes_copied: int
    arena_bytes: int
    pte_bytes: int


class CopyCall(NamedTuple):
    """A call of a kernel of the slice or view family, and the bytes it writes."""

    instruction: int
    op: str
    nbytes: int


def program_cost(manager: ExecutorchProgramManager) -> ProgramCost:
    plans = manager.executorch_program.execution_plan
    slices = [c for plan in plans for c in copy_calls(plan, SLICE_FAMILY)]
    views = [c for plan in plans for c in copy_calls(plan, VIEW_FAMILY)]
    return ProgramCost(
        instructions=sum(len(c.instructions) for plan in plans for c in plan.chains),
        slice_instructions=len(slices),
        view_instructions=len(views),
        bytes_copied=sum(call.nbytes for call in slices + views),
        arena_bytes=sum(sum(plan.non_const_buffer_sizes) for plan in plans),
        pte_bytes=len(manager.buffer),
    )


def copy_calls(plan: ExecutionPlan, family: frozenset[str]) -> Iterator[CopyCall]:
    """The instructions of a method that call a kernel of `family`, in order."""
    instructions = (i for chain in plan.chains for i in chain.instructions)
    for at, instruction in enumerate(instructions):
        call = instruction.instr_args
        if isinstance(call, KernelCall):
            operator = plan.operators[call.op_index].name
            namespace, _, name = operator.partition("::")
            if namespace in ("aten", "dim_order_ops") and name in family:
                yield CopyCall(at, operator, _out_bytes(plan, call))


def _out_bytes(plan: ExecutionPlan, call: KernelCall) -> int:
    """Bytes of the result, which is the last argument and may be a list."""
    out = plan.values[call.args[-1]].val
    tensors = (
        [plan.values[i].val for i in out.items]
        if isinstance(out, TensorList)
        else [out]
    )
    return sum(
        tensor_nbytes(tensor) for tensor in tensors if isinstance(tensor, Tensor)
    )
