# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Copies that move nothing cost nothing in ExecuTorch programs.

Importing this package, or PyTorch's autoload of it, joins it to ExecuTorch as soon
as that is imported. Nothing heavy is imported before.
"""

from typing import TYPE_CHECKING

from executorch_slice._activation import (
    activate,
    disable,
    disabled,
    enable,
    is_enabled,
    UnsupportedExecuTorchError,
)

if TYPE_CHECKING:
    from executorch_slice.exir.capture._config import (
        AliasConfig,
        ExecutorchBackendConfig,
    )
    from executorch_slice.exir.program._program import decisions

__all__ = [
    "AliasConfig",
    "ExecutorchBackendConfig",
    "UnsupportedExecuTorchError",
    "decisions",
    "disable",
    "disabled",
    "enable",
    "is_enabled",
]
__version__ = "0.1.0"

_LAZY = {
    "AliasConfig": "executorch_slice.exir.capture._config",
    "ExecutorchBackendConfig": "executorch_slice.exir.capture._config",
    "decisions": "executorch_slice.exir.program._program",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)


def _autoload() -> None:
    """Entry point of PyTorch's autoload: importing this package was all it takes."""


activate()
