# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Clones that passes add to a graph which has specs."""

from typing import Any, Optional

from executorch.exir.tensor import TensorSpec
from torch import Tensor
from torch.fx import Node
from torch.fx.passes.shape_prop import _extract_tensor_metadata


def clone_node(
    node: Node,
    target: Any,
    value: Tensor,
    reader: Optional[Node] = None,
    **kwargs: Any,
) -> Node:
    """Adds a clone of `node` at the place where its graph inserts.

    Args:
        target: the op that clones, called with `node` and `kwargs`.
        value: what the clone is, a fake tensor; its layout gives the spec.
        reader: for which the clone is made, if not for an output: it stands for the
            same line of the model. (A graph input has none.)
    """
    clone = node.graph.call_function(target, (node,), kwargs)
    for key in ("stack_trace", "nn_module_stack"):
        clone.meta[key] = (reader or node).meta.get(key)
    clone.meta["val"], clone.meta["spec"] = value, TensorSpec.from_tensor(value)
    clone.meta["tensor_meta"] = _extract_tensor_metadata(value)
    return clone
