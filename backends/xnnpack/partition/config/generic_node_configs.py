# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Which slices an XNNPACK delegate takes in, and why it refuses the others."""

from typing import Any, Optional

from executorch.backends.xnnpack.partition.config import (
    generic_node_configs as upstream,
)
from executorch.backends.xnnpack.utils.quant_utils import (
    is_dequant,
    is_per_channel,
    is_quant,
)
from executorch.backends.xnnpack.utils.utils import get_input_node
from executorch_slice.backends.xnnpack.operators.op_slice_copy import MOST_DIMS
from executorch_slice.exir.alias_layout import has_static_arguments, named_arguments
from torch.export import ExportedProgram
from torch.fx import Node

_upstream_init = upstream.SliceCopyConfig.__init__


def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
    """Replaces ``SliceCopyConfig.__init__``: keeps the switch for strided slices.

    ``XnnpackPartitioner(strided_slices=False)`` leaves slices with a step to portable
    kernels, as stock does.
    """
    _upstream_init(self, *args, **kwargs)
    self.strided_slices = kwargs.get("strided_slices", True)


def check_constraints(self: Any, node: Node, ep: ExportedProgram) -> bool:
    """Replaces ``SliceCopyConfig.check_constraints``: takes static slices of any step.

    Logs why where it refuses one.
    """
    reason = _why_not(self, node, ep)
    if reason is not None:
        upstream.why(node, reason=reason)
        return False
    return bool(self.check_common_constraints(node, ep))


def _why_not(config: Any, node: Node, ep: ExportedProgram) -> Optional[str]:
    source = get_input_node(node, 0)
    before, after = source.meta["val"], node.meta["val"]
    if not has_static_arguments(node):
        return f"its bounds {node.args[1:]} are not known at lowering"
    for name, value in (("input", before), ("output", after)):
        shape = list(value.shape)
        if not all(isinstance(size, int) for size in shape):
            return f"its {name} has the dynamic shape {shape}"
        if 0 in shape:
            return f"its {name} has a zero-size dim: {shape}"
    if len(before.shape) > MOST_DIMS:
        return f"it has {len(before.shape)} dims, XNNPACK at most {MOST_DIMS}"
    if not config._check_node_has_valid_dtype(node):
        return f"XNNPACK has no slice of dtype {after.dtype}"
    is_strided = named_arguments(node).get("step", 1) != 1
    if is_strided and not config.strided_slices:
        return "strided_slices=False leaves slices with a step to portable kernels"
    return _why_not_quantized(node, source, is_strided, ep)


def _why_not_quantized(
    node: Node, source: Node, is_strided: bool, ep: ExportedProgram
) -> Optional[str]:
    """Why a slice between a dequantize and its one reader, a quantize, is refused."""
    users = list(node.users)
    if not is_dequant(source) or len(users) != 1 or not is_quant(users[0]):
        return None
    if not upstream._q_dq_quantization_params_match(source, users[0], ep):
        return "its input and output have different quantization parameters"
    if is_strided and is_per_channel(source):
        return "a step would mix channels that are quantized differently"
    return None
