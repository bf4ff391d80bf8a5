# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Alias ops survive a saved Executorch-dialect program, as `memory.view` does."""

from executorch_slice.exir.memory import select, slice

KNOWN_FUNCTIONS = {f"{op.__module__}.{op.__name__}": op for op in (slice, select)}
