# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""What each instruction of a program reads and writes, as its schema tells it."""

from typing import NamedTuple

from executorch.exir.schema import (
    DelegateCall,
    ExecutionPlan,
    Instruction,
    KernelCall,
    MoveCall,
    OptionalTensorList,
    Tensor,
    TensorList,
)


class Access(NamedTuple):
    """The values that one instruction reads and writes, and what it calls.

    Attributes:
        callee: operator or delegate.
        unsure: values that are either read or written: a program does not tell where
            the outputs of a delegate begin among its arguments.
    """

    callee: str
    reads: list[int]
    writes: list[int]
    unsure: tuple[int, ...] = ()


def accesses_of(plan: ExecutionPlan) -> list[Access]:
    """One for each instruction of a method, those of all its chains in one row."""
    accesses: list[Access] = []
    known = {
        value
        for value, evalue in enumerate(plan.values)
        if not isinstance(evalue.val, Tensor)
        or evalue.val.allocation_info is None
        or evalue.val.data_buffer_idx
    }
    known.update(plan.inputs)
    for chain in plan.chains:
        for instruction in chain.instructions:
            access = _access(plan, instruction, known)
            known.update(access.reads, access.writes, access.unsure)
            accesses.append(access)
    return accesses


def _access(plan: ExecutionPlan, instruction: Instruction, known: set[int]) -> Access:
    call = instruction.instr_args
    if isinstance(call, KernelCall):
        return _kernel_access(plan, call)
    if isinstance(call, DelegateCall):
        return _delegate_access(plan, call, known)
    if isinstance(call, MoveCall):
        return Access("move", [call.move_from], [call.move_to])
    return Access("", [], [])


def _delegate_access(
    plan: ExecutionPlan, call: DelegateCall, known: set[int]
) -> Access:
    """Outputs stand last, were never met before, and are numbered in a row."""
    args = call.args
    split = max(len(args) - 1, 0)
    while split and args[split - 1] not in known and args[split - 1] + 1 == args[split]:
        split -= 1
    name = plan.delegates[call.delegate_index].id
    return Access(name, args[:split], args[-1:], tuple(args[split:-1]))


def _kernel_access(plan: ExecutionPlan, call: KernelCall) -> Access:
    """The result stands last; an out variant has it as an argument before that, too."""
    operator = plan.operators[call.op_index]
    name = operator.name.partition("::")[2]
    result = _flat(plan, call.args[-1:])
    if operator.name == "executorch_prim::et_copy_index":
        return Access(name, _flat(plan, call.args[1:]), [call.args[0]])
    arguments = _flat(plan, call.args[:-1])
    if "out" in operator.overload and arguments[-len(result) :] == result:
        arguments = arguments[: -len(result)]
    return Access(name, arguments, result)


def _flat(plan: ExecutionPlan, values: list[int]) -> list[int]:
    """`values`, and what lists among them hold."""
    flat = []
    for value in values:
        held = plan.values[value].val
        is_list = isinstance(held, (TensorList, OptionalTensorList))
        flat += [v for v in held.items if v >= 0] if is_list else [value]
    return flat
