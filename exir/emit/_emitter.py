# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Emission of aliases: no instruction, and a clear error where there is no address."""

from typing import Any, Dict, Tuple

from executorch.exir.emit import _emitter as upstream
from executorch.exir.error import InternalError
from executorch_slice.exir import memory
from torch.fx import Node

_upstream_call_function = upstream._Emitter.call_function


def call_function(
    self: Any, target: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]
) -> Any:
    """Replaces ``_Emitter.call_function``: emits alias ops, leaves others upstream.

    A static planned alias is a tensor value with its root's `mem_id` and its own
    offset. It needs no instruction and no operator; where only other such aliases
    read it, not even the value.

    Raises:
        InternalError: an alias has no address, because its root is not planned or
            its shape is dynamic.
    """
    if target not in memory.ALIAS_OPS:
        return _upstream_call_function(self, target, args, kwargs)
    if _has_address(self.node):
        is_read = any(not _has_address(user) for user in self.node.users)
        return self._emit_spec(self.node.meta["spec"]) if is_read else None
    if target is upstream.memory.view:
        return _upstream_call_function(self, target, args, kwargs)
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


def _has_address(node: Node) -> bool:
    """Whether `node` is an alias that no instruction makes: static, and placed."""
    if not memory.is_alias(node):
        return False
    spec = node.meta["spec"]
    is_planned = spec.mem_id is not None and spec.mem_offset is not None
    is_constant = spec.const and spec.storage is not None
    return spec.is_static_shape_tensor and (is_planned or is_constant)
