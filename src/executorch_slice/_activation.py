# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""When the tree is joined to an installed ExecuTorch, and the switch for it."""

import sys
import warnings
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Callable, Iterator, Optional

# What triggers a group of seams: the module that imports all others they touch.
LOWERING = "executorch.exir.program._program"
SAVING = "executorch.exir.serde.serialize"
XNNPACK = "executorch.backends.xnnpack.partition.xnnpack_partitioner"
CUDA = "executorch.backends.cuda.cuda_backend"
PROFILING = "executorch.util.activation_memory_profiler"
TRIGGERS = (LOWERING, SAVING, XNNPACK, CUDA, PROFILING)

_on = True
_disabled_here: ContextVar[int] = ContextVar("executorch_slice_disabled", default=0)
_failure: Optional[str] = None


class UnsupportedExecuTorchError(RuntimeError):
    """The installed ExecuTorch is not one that this package can be joined to."""


def activate() -> None:
    """Joins this package to ExecuTorch now or when that is imported. Never raises."""
    if "executorch" in sys.modules:
        _watch()
    else:
        sys.meta_path.insert(0, _FirstImport())


def enable() -> None:
    """Switches the package on for later lowerings, in all threads.

    Raises:
        UnsupportedExecuTorchError: the installed ExecuTorch is missing, out of the
            supported range, or does not look as expected; nothing was changed.
    """
    global _on, _failure
    from executorch_slice import seams

    seams.join(LOWERING)
    _on, _failure = True, None


def disable() -> None:
    """Switches the package off: later lowerings are stock ExecuTorch's."""
    global _on
    _on = False


def is_enabled() -> bool:
    """Whether a lowering that starts here and now elides copies."""
    return _on and _failure is None and not _disabled_here.get()


@contextmanager
def disabled() -> Iterator[None]:
    """Stock lowering within the block, for the current thread or task only."""
    token = _disabled_here.set(_disabled_here.get() + 1)
    try:
        yield
    finally:
        _disabled_here.reset(token)


class _FirstImport(MetaPathFinder):
    """Finds nothing; starts to watch when `executorch` is first looked for.

    Until then not even wrapt is imported, so that `import torch` stays as fast.
    """

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "executorch":
            sys.meta_path.remove(self)
            _watch()


def _watch() -> None:
    try:
        for trigger in TRIGGERS:
            _after_import(trigger, _join_or_warn)
    except Exception as error:
        _warn(f"could not watch for ExecuTorch: {error!r}")


def _join_or_warn(trigger: ModuleType) -> None:
    global _failure
    if _failure is not None:
        return
    try:
        from executorch_slice import seams

        seams.join(trigger.__name__)
    except Exception as error:
        _failure = str(error)
        _warn(_failure)


def _warn(cause: str) -> None:
    warnings.warn(
        f"executorch-slice is inactive, ExecuTorch works as without it: {cause}",
        stacklevel=2,
    )


def _after_import(name: str, callback: Callable[[ModuleType], None]) -> None:
    """Calls `callback` with module `name` once its import is complete.

    wrapt would call back at once for a module that is in ``sys.modules`` but still
    executing; the end of that import shows when its spec is marked as initialized.
    """
    spec = getattr(sys.modules.get(name), "__spec__", None)
    if getattr(spec, "_initializing", False):
        spec.__dict__["_on_initialized"] = callback
        spec.__class__ = _WatchedSpec
    else:
        import wrapt

        wrapt.register_post_import_hook(callback, name)


class _WatchedSpec(ModuleSpec):
    """A module spec that reports the end of the import that is going on."""

    def __setattr__(self, attribute: str, value: Any) -> None:
        super().__setattr__(attribute, value)
        if attribute == "_initializing" and not value:
            self.__class__ = ModuleSpec  # type: ignore[assignment]
            callback = self.__dict__.pop("_on_initialized")
            if self.name in sys.modules:
                callback(sys.modules[self.name])
