# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Parts of constants that a program holds instead of the constant itself.

A program cannot point into a constant, so a slice of one is copied at each run. Where
nothing but such slices reads the constant, the program may as well hold those, if they
need no more bytes.
"""

import hashlib
import operator
from collections import Counter
from typing import Any, Collection, Dict, Iterable, List, NamedTuple, Set

import torch
from executorch.exir._serialize.padding import aligned_size
from executorch.exir.passes.constant_prop_pass import get_constant_placeholder_dict
from executorch_slice.exir.alias_copy import Copy
from executorch_slice.exir.alias_decision import Reason
from executorch_slice.exir.alias_effects import MemoryEffects
from executorch_slice.exir.alias_layout import (
    CONVERSIONS,
    family_of,
    overload_of,
    PIECE_FAMILY,
    SLICE_FAMILY,
)
from executorch_slice.exir.alias_roots import PlannedMemory
from executorch_slice.exir.memory import is_alias
from torch._export.utils import get_buffer, get_lifted_tensor_constant, get_param
from torch.export import ExportedProgram
from torch.fx import Node

# Set in the meta of a placeholder whose bytes no other constant of the program has:
# equal ones are stored once, so that to leave out one of them would save nothing.
IS_UNIQUE = "constant_is_unique"

_TAKING = SLICE_FAMILY | PIECE_FAMILY | CONVERSIONS
_CONSTANTS = get_param, get_buffer, get_lifted_tensor_constant


def mark_unique_constants(programs: Collection[ExportedProgram]) -> None:
    """Notes in each constant whether a part of it will do, and no other has its bytes.

    A buffer that any method writes may be one that all of them share: no constant.

    Args:
        programs: all methods of what will be one program file.
    """
    written = {
        fqn
        for program in programs
        for fqn in program.graph_signature.buffers_to_mutate.values()
    }
    constants: Dict[Node, torch.Tensor] = {}
    sliced: Set[Node] = set()
    for program in programs:
        buffers = program.graph_signature.inputs_to_buffers
        for node, tensor in get_constant_placeholder_dict(program).items():
            constants[node] = tensor
            is_fixed = buffers.get(str(node.target)) not in written
            if is_fixed and _is_sliced(node):
                sliced.add(node)
    with_size = Counter(tensor.nbytes for tensor in constants.values())
    in_doubt = {constants[node].nbytes for node in sliced}
    in_doubt &= {nbytes for nbytes, count in with_size.items() if count > 1}
    contents = {n: _digest(t) for n, t in constants.items() if t.nbytes in in_doubt}
    with_content = Counter(contents.values())
    for node in constants:
        is_once = node not in contents or with_content[contents[node]] == 1
        node.meta[IS_UNIQUE] = node in sliced and is_once


def _is_sliced(node: Node) -> bool:
    """Whether a slice or conversion reads `node`, or a copy that may have its bytes."""
    families = {user: family_of(overload_of(user)) for user in node.users}
    return any(
        family in _TAKING or (family and _is_sliced(user))
        for user, family in families.items()
    )


def _digest(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return hashlib.sha256(flat.view(torch.uint8).numpy()).digest()


def parts_to_store(
    copies: Iterable[Copy], memory: PlannedMemory, effects: MemoryEffects
) -> List[Copy]:
    """Those of `copies` that the program holds instead of what they are parts of.

    Args:
        copies: of one graph, after their layouts have been checked.
        memory: how the program stores constants.
        effects: of the graph.
    """
    alignment = memory.constant_alignment
    if alignment is None:
        return []
    by_base: Dict[Node, List[Copy]] = {}
    for copy in copies:
        by_base.setdefault(copy.base, []).append(copy)
    found: List[Copy] = []
    for base in by_base:
        if base.meta.get(IS_UNIQUE, False) and base.meta["spec"].const:
            parts = _parts(base, by_base, effects)
            held = {part.how: part.copy for part in parts if part.is_read}
            needed = sum(
                aligned_size(copy.node.meta["spec"].nbytes(), alignment)
                for copy in held.values()
            )
            is_needed = any(not part.copy.is_whole for part in parts)
            stored = aligned_size(base.meta["spec"].nbytes(), alignment)
            if is_needed and needed <= stored:
                found += [part.copy for part in parts]
    return found


class _Part(NamedTuple):
    """A copy of a part of a constant; `how` is equal for those of equal bytes."""

    copy: Copy
    how: str
    is_read: bool  # by anything but copies of parts of it


def _parts(
    base: Node,
    by_base: Dict[Node, List[Copy]],
    effects: MemoryEffects,
    how: str = "",
) -> List[_Part]:
    """All parts of `base` and of its parts; none if anything else reads `base`."""
    copies = by_base.get(base, [])
    sources = {copy.source for copy in copies}
    stored = all(_may_be_stored(copy, effects) for copy in copies)
    if not stored or any(user not in sources for user in base.users):
        return []
    found = []
    for copy in copies:
        call = copy.source
        piece = "" if copy.node is call else copy.node.args[1]
        below_how = f"{how} {overload_of(call)} {call.args[1:]} {call.kwargs} {piece}"
        below = _parts(copy.node, by_base, effects, below_how)
        found += [_Part(copy, below_how, not below), *below]
    return found


def _may_be_stored(copy: Copy, effects: MemoryEffects) -> bool:
    return (
        (copy.family in _TAKING or copy.is_whole)
        and copy.reason in (Reason.SAFE, Reason.NOT_DENSE)  # static, with specs
        and copy.node not in effects.writes
        and all(user.op != "output" for user in copy.node.users)
        and (
            copy.source is copy.node
            or all(user.target is operator.getitem for user in copy.source.users)
        )
    )


def part_of_constant(program: ExportedProgram, node: Any) -> torch.Tensor:
    """The values of a stored part, as its spec lays them out.

    Args:
        program: the method that holds `node`.
        node: an alias op, whose root is a constant.
    """
    calls = []
    while is_alias(node):
        calls.append(node)
        node = node.args[0]
    found = (get(program, node) for get in _CONSTANTS)
    part: Any = next(tensor for tensor in found if tensor is not None).detach()
    for call in reversed(calls):
        part = call.target(part, *call.args[1:]).contiguous()
    spec = calls[0].meta["spec"]
    return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype).copy_(part)
