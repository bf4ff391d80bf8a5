# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Modules that ExecuTorch lacks, importable under their in-tree name.

``executorch.exir.passes.replace_slice_copy_with_slice_pass`` is the same module
object as ``executorch_slice.exir.passes.replace_slice_copy_with_slice_pass``.
"""

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_loader
from types import ModuleType
from typing import Optional, Sequence

UPSTREAM, TREE = "executorch", "executorch_slice"
FOLDERS = ("backends", "exir")


class _InTreeLoader(Loader):
    """Loads a module of the tree, and leaves it as if its own name had loaded it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self.name)
        self.own = (module.__spec__, module.__loader__)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__, module.__loader__ = self.own


class _InTreeFinder(MetaPathFinder):
    """Asked last, so only for what ExecuTorch itself does not have."""

    def find_spec(
        self,
        fullname: str,
        path: Optional[Sequence[str]] = None,
        target: Optional[ModuleType] = None,
    ) -> Optional[ModuleSpec]:
        package, _, rest = fullname.partition(".")
        if package != UPSTREAM or rest.partition(".")[0] not in FOLDERS:
            return None
        name = f"{TREE}.{rest}"
        try:
            found = find_spec(name)
        except ModuleNotFoundError:
            return None
        return spec_from_loader(fullname, _InTreeLoader(name)) if found else None


def install() -> None:
    """Makes the in-tree names importable."""
    if not any(isinstance(finder, _InTreeFinder) for finder in sys.meta_path):
        sys.meta_path.append(_InTreeFinder())
