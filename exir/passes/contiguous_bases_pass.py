# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""ContiguousBasesPass: copies of channels-last tensors read what their kernels can."""

from typing import Any, Dict

import torch
from executorch.exir import dim_order_utils  # noqa: F401, registers dim_order_ops
from executorch_slice.exir.alias_effects import MemoryEffects
from executorch_slice.exir.alias_layout import (
    CONVERSIONS,
    family_of,
    has_static_arguments,
    is_contiguous,
    is_dense_tensor,
    overload_of,
    view_layouts,
)
from executorch_slice.exir.passes.clone_node import clone_node
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassBase, PassResult
from torch.utils._pytree import tree_leaves

_CONVERSION = torch.ops.dim_order_ops._clone_dim_order.default


class ContiguousBasesPass(PassBase):  # type: ignore[misc]
    """Puts a conversion before a contiguous copy of a tensor in another dim order.

    Edge programs may slice, select, split, squeeze, permute or view a channels-last
    tensor, and expect a contiguous result. The portable kernels of these ops want
    both in one dim order: they fail when the program runs, or copy bytes as they lie.
    Such a copy gets a `_clone_dim_order` of its base instead; one whose result lies
    in its base as it is gets none.

    Run it after SpecPropPass and before the copies are analysed.
    """

    def call(self, graph_module: GraphModule) -> PassResult:
        modified = False
        for module in graph_module.modules():
            if isinstance(module, GraphModule):
                modified |= _convert_bases(module)
        return PassResult(graph_module, modified)


def _convert_bases(module: GraphModule) -> bool:
    """Converts each base once, or for each copy where it may be written meanwhile."""
    copies = [node for node in module.graph.nodes if _needs_contiguous_base(node)]
    if not copies:
        return False
    effects = MemoryEffects(module)
    converted: Dict[Any, Node] = {}
    for node in copies:
        base = node.args[0]
        is_written = effects.roots[base] in effects.writes
        key = node if is_written else base
        if key not in converted:
            value = base.meta["val"].contiguous()
            order = list(range(value.dim()))
            with module.graph.inserting_before(node):
                converted[key] = clone_node(
                    base, _CONVERSION, value, reader=node, dim_order=order
                )
        node.args = (converted[key], *node.args[1:])
    module.recompile()
    return True


def _needs_contiguous_base(node: Node) -> bool:
    family = family_of(overload_of(node))
    base: Any = node.args[0] if node.args else None
    if family is None or family in CONVERSIONS or not isinstance(base, Node):
        return False
    spec = base.meta.get("spec")
    results = tree_leaves(node.meta.get("spec"))
    if not all(map(is_dense_tensor, (spec, *results))) or is_contiguous(spec):
        return False
    if not all(map(is_contiguous, results)):
        return False
    is_static = has_static_arguments(node) and not spec.is_dynamic_shape_tensor
    layouts = view_layouts(node, spec) if is_static else []
    lie_there = [one.is_dense_as(result) for one, result in zip(layouts, results)]
    return not (lie_there and all(lie_there))
