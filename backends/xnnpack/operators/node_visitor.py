# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""The visitors that serialize a delegate's nodes, with the one for slices replaced."""

from typing import Any, Dict

from executorch.backends.xnnpack.operators import node_visitor as upstream
from executorch_slice.backends.xnnpack.operators.op_slice_copy import SliceCopyVisitor

_upstream_get_node_visitors = upstream.get_node_visitors


def get_node_visitors(*args: Any) -> Dict[str, upstream.NodeVisitor]:
    """Upstream's, constructed with `args`, by the names of their targets."""
    visitors: Dict[str, upstream.NodeVisitor] = _upstream_get_node_visitors(*args)
    visitors[SliceCopyVisitor.target] = SliceCopyVisitor(*args)
    return visitors
