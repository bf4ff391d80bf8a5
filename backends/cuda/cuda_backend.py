# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""The passes of the CUDA backend, with those that make returned views contiguous."""

from typing import Any, List

from executorch.backends.cuda.cuda_backend import CudaBackend
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch_slice.backends.aoti.passes.clone_returned_views_pass import (
    CloneReturnedViewsPass,
)
from executorch_slice.backends.aoti.passes.decompose_views_pass import (
    DecomposeViewsPass,
)

CLONE_RETURNED_VIEWS = "clone_returned_views"  # key of a compile spec

_upstream_get_custom_passes = CudaBackend.get_custom_passes.__func__


def get_custom_passes(cls: Any, compile_specs: List[CompileSpec]) -> List[Any]:
    """Replaces ``CudaBackend.get_custom_passes``: passes for views, then upstream's.

    One of upstream's validates the program, which is valid only after the first.

    Raises:
        ValueError: a compile spec ``clone_returned_views`` is neither ON nor OFF.
    """
    clones = True
    for spec in compile_specs:
        if spec.key == CLONE_RETURNED_VIEWS:
            value = spec.value.decode("utf-8").upper()
            if value not in ("ON", "OFF"):
                raise ValueError(f"{spec.key} is {value}, expected ON or OFF")
            clones = value == "ON"
    ours = [DecomposeViewsPass(), *([CloneReturnedViewsPass()] if clones else [])]
    return [*ours, *_upstream_get_custom_passes(cls, compile_specs)]
