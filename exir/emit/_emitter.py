# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Emission of aliases: no instruction, or one that places them at run time."""

from typing import Any, Dict, Sequence, Tuple

from executorch.exir.emit import _emitter as upstream
from executorch.exir.error import InternalError
from executorch.exir.schema import Instruction, KernelCall
from executorch_slice._activation import is_enabled
from executorch_slice.exir import memory
from executorch_slice.exir.alias_constants import part_of_constant
from executorch_slice.exir.passes.replace_view_copy_with_view_pass import _ViewSpec
from torch.fx import Node

_upstream_call_function = upstream._Emitter.call_function
_upstream_placeholder = upstream._TopLevelEmitter.placeholder

# Instructions of kernels/prim_ops. Arguments: the alias op's, then `out`.
_KERNELS = {
    memory.slice: "executorch_prim::et_slice",
    memory.select: "executorch_prim::et_select",
}
_SLICE_DEFAULTS = (0, None, None, 1)  # dim, start, end, step


def call_function(
    self: Any, target: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]
) -> Any:
    """Replaces ``_Emitter.call_function``: emits alias ops, leaves others upstream.

    A static planned alias is a tensor value with its root's `mem_id` and its own
    offset. It needs no instruction and no operator; where only other such aliases
    read it, not even the value. A part of a constant is a constant. A slice or select
    with a spec that was never meant to be planned becomes an `et_slice` or `et_select`,
    as a view becomes an `et_view`; these have debug handles and stack traces as
    instructions of operators have.

    Raises:
        InternalError: a part of a root has no address, because the root is not planned
            or its shape is dynamic.
    """
    if target not in memory.ALIAS_OPS:
        return _upstream_call_function(self, target, args, kwargs)
    known = len(self.chain.instructions)
    value = _emit_alias(self, target, args, kwargs)
    if len(self.chain.instructions) > known and is_enabled():
        _add_debug_info(self, target)
    return value


def _emit_alias(
    self: Any, target: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]
) -> Any:
    if memory.is_stored_part(self.node):
        part = part_of_constant(self.exported_program, self.node)
        self.node.meta["spec"].storage = part.untyped_storage()
    if _has_address(self.node):
        is_read = any(not _has_address(user) for user in self.node.users)
        return self._emit_spec(self.node.meta["spec"]) if is_read else None
    if target is upstream.memory.view:
        return _upstream_call_function(self, target, args, kwargs)
    if not isinstance(self.node.meta["spec"], _ViewSpec):
        return _emit_kernel(self, target, args)
    spec, root = self.node.meta["spec"], memory.alias_root(self.node)
    cause = "has a dynamic shape" if spec.is_dynamic_shape_tensor else "is not planned"
    raise InternalError(
        self._emit_node_specific_error(
            self.node,
            f"{self.node.name} is an alias of {root.name}, which {cause}, so the "
            "alias has no address. Plan that tensor's memory with ExecuTorch's "
            "MemoryPlanningPass, or lower with ExecutorchBackendConfig("
            "remove_view_copy=False), which switches aliases off.",
        )
    )


def placeholder(
    self: Any, target: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]
) -> Any:
    """Replaces ``_TopLevelEmitter.placeholder``: only what is read is stored.

    A constant is left out where the program holds parts of it instead.
    """
    users = self.node.users
    if users and all(map(memory.is_stored_part, users)):
        return None
    return _upstream_placeholder(self, target, args, kwargs)


def _emit_kernel(self: Any, target: Any, args: Sequence[Any]) -> Any:
    """The instruction that points `out`, which has no memory, into that of args[0]."""
    if target is memory.slice:
        args = (*args, *_SLICE_DEFAULTS[len(args) - 1 :])
    out = self._emit_spec(self.node.meta["spec"])
    values = [self._emit_argument(arg, None).id for arg in args]
    index, _ = self._get_operator(name=_KERNELS[target], overload="default")
    self.chain.instructions.append(Instruction(KernelCall(index, [*values, out.id])))
    return out


def _add_debug_info(self: Any, target: Any) -> None:
    """Notes of the last instruction what upstream notes of those of operators."""
    self._add_debug_handle(len(self.chain.instructions) - 1, target)
    if self.emitter_state.emit_stacktrace:
        trace = upstream._stacktrace_to_framelist(self.node.meta["stack_trace"])
        self.chain.stacktrace = [*(self.chain.stacktrace or ()), trace]


def _has_address(node: Node) -> bool:
    """Whether `node` is an alias that no instruction makes: static, and placed."""
    if not memory.is_alias(node):
        return False
    spec = node.meta["spec"]
    is_planned = spec.mem_id is not None and spec.mem_offset is not None
    is_constant = spec.const and (
        spec.storage is not None or memory.is_stored_part(node)
    )
    return spec.is_static_shape_tensor and (is_planned or is_constant)
