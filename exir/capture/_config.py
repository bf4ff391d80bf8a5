# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""AliasConfig, and an ExecutorchBackendConfig that carries it."""

from dataclasses import dataclass, field

from executorch.exir.capture import _config as upstream


@dataclass(frozen=True)
class AliasConfig:
    """Which copies `to_executorch()` may turn into aliases of planned memory.

    Attributes:
        enabled: False leaves every copy as stock ExecuTorch lowers it.
    """

    enabled: bool = True


@dataclass
class ExecutorchBackendConfig(upstream.ExecutorchBackendConfig):
    """ExecuTorch's config and one field more; a stock config means its default.

    `remove_view_copy=False` switches every alias off, whatever `alias` says.
    """

    alias: AliasConfig = field(default_factory=AliasConfig)
