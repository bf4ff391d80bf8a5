# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""A copy that Inductor does not optimize away.

Inductor's ``remove_noop_ops`` drops a clone whose sizes and strides are those of what
it copies, whatever the storage offset: ``y[1:].clone()`` would be a part of `y` again.
It knows nothing of this op, and its lowering is that of a clone: a native kernel, of
which no trace is left in the compiled library.
"""

import torch
from executorch.exir.dialects._ops import ops as exir_ops
from torch import Tensor
from torch._inductor.lowering import clone, register_lowering


@torch.library.custom_op("executorch_aoti::contiguous_copy", mutates_args=())
def contiguous_copy(self: Tensor) -> Tensor:
    """A copy of `self`, of its shape, with contiguous strides and storage offset 0."""
    return self.clone(memory_format=torch.contiguous_format)


@contiguous_copy.register_fake
def _(self: Tensor) -> Tensor:
    return self.new_empty(self.shape)


register_lowering(
    torch.ops.executorch_aoti.contiguous_copy.default, type_promotion_kind=None
)(clone)

CONTIGUOUS_COPY = exir_ops.edge.executorch_aoti.contiguous_copy.default
