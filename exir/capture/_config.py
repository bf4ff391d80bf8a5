# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""AliasConfig, and an ExecutorchBackendConfig that carries it."""

from dataclasses import dataclass, field
from typing import Literal

from executorch.exir.capture import _config as upstream


@dataclass(frozen=True)
class AliasConfig:
    """Which copies `to_executorch()` may turn into aliases of planned memory.

    Attributes:
        enabled: False leaves every copy as stock ExecuTorch lowers it.
        memory_growth: "never" gives up aliases that would make an arena of a method
            larger than it is without them; "allow" makes all that are safe.
        min_alignment: bytes; an alias whose offset in its arena is no multiple of it
            stays a copy. (Views of whole tensors lie where these lie.) What has no
            offset before the program runs counts from its base, and stays a copy
            where that is not known either.
        emit_et_slice: True makes `et_slice` and `et_select` instructions of copies that
            lie together and have no address at lowering. The program then runs only
            where these ops are registered; see docs/et-slice.md.

    Raises:
        ValueError: a field has none of these values.
    """

    enabled: bool = True
    memory_growth: Literal["never", "allow"] = "never"
    min_alignment: int = 1
    emit_et_slice: bool = False

    def __post_init__(self) -> None:
        for name, value in [
            ("enabled", self.enabled),
            ("emit_et_slice", self.emit_et_slice),
        ]:
            if type(value) is not bool:
                raise ValueError(f"{name} is {value!r}, not True or False")
        if self.memory_growth not in ("never", "allow"):
            raise ValueError(
                f'memory_growth is {self.memory_growth!r}, not "never" or "allow"'
            )
        if type(self.min_alignment) is not int or self.min_alignment < 1:
            raise ValueError(
                f"min_alignment is {self.min_alignment!r}, not an int of at least 1"
            )


@dataclass
class ExecutorchBackendConfig(upstream.ExecutorchBackendConfig):
    """ExecuTorch's config and one field more; a stock config means its default.

    `remove_view_copy=False` switches every alias off, whatever `alias` says.

    Raises:
        TypeError: `alias` is no AliasConfig.
    """

    alias: AliasConfig = field(default_factory=AliasConfig)

    def __post_init__(self) -> None:
        if not isinstance(self.alias, AliasConfig):
            raise TypeError(f"alias is {self.alias!r}, not an AliasConfig")
