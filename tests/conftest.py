# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Fixtures of more than one module."""

import pytest
from executorch_slice.runtime import CompilerNotFoundError, load_kernels


@pytest.fixture(scope="session")
def kernels() -> None:
    """et_slice and et_select in the runtime of this process."""
    try:
        load_kernels()
    except CompilerNotFoundError as error:
        pytest.skip(str(error))
