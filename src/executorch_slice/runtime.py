# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Adds et_slice and et_select to the ExecuTorch runtime of this process.

A program that holds one of these ops fails to load in a runtime without it.
Importing this module loads nothing.
"""

import ctypes
import hashlib
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import List, Optional

SOURCES = "executorch_slice.kernels.prim_ops"
COMPILERS = ("c++", "g++", "clang++")
FLAGS = ["-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden"]
# What the wheel's own libraries were compiled with.
DEFINITIONS = ["-DC10_USING_CUSTOM_GENERATED_MACROS", "-DET_EVENT_TRACER_ENABLED"]

_lock = threading.Lock()
_loaded: Optional[Path] = None


class KernelsError(RuntimeError):
    """The kernels could not be loaded."""


class UnsupportedPlatformError(KernelsError):
    """The kernels cannot be built for this platform or this ExecuTorch."""


class CompilerNotFoundError(KernelsError):
    """There is no C++ compiler."""


class CompilationError(KernelsError):
    """The C++ compiler failed; the message holds what it printed."""


class UntrustedCacheError(KernelsError):
    """Another user owns the cached library or could have written it."""


def load_kernels() -> Path:
    """Registers et_slice and et_select with this process's ExecuTorch runtime.

    The first call of a user builds a library, which takes a C++ compiler (`CXX`, or
    `c++`, `g++` or `clang++`). It is kept in `EXECUTORCH_SLICE_CACHE`, or else in
    `executorch-slice` under `XDG_CACHE_HOME` or `~/.cache`. Where the environment
    variable `EXECUTORCH_SLICE_KERNELS` names a library, that is loaded instead.

    Later calls return at once. A runtime that has the ops already keeps its own.

    Returns:
        The path of the library.

    Raises:
        UnsupportedPlatformError: this is not Linux, or the installed ExecuTorch has
            no shared runtime library.
        CompilerNotFoundError: there is no C++ compiler.
        CompilationError: the compiler failed.
        UntrustedCacheError: another user could have written the cached library.
        KernelsError: the library cannot be loaded.
    """
    global _loaded
    with _lock:
        if _loaded is None:
            prebuilt = os.environ.get("EXECUTORCH_SLICE_KERNELS")
            library = Path(prebuilt).absolute() if prebuilt else _built_library()
            try:
                ctypes.CDLL(str(library))
            except OSError as error:
                raise KernelsError(f"cannot load {library}: {error}") from error
            _loaded = library
        return _loaded


def _built_library() -> Path:
    """The library for these sources and this runtime, built unless it is cached."""
    runtime = _runtime_root()
    compiler = _compiler()
    sources = Path(str(files(SOURCES)))
    include = runtime / "include"
    command = [
        *compiler,
        *FLAGS,
        *DEFINITIONS,
        f"-I{include}",
        f"-I{include}/executorch/runtime/core/portable_type/c10",
        str(sources / "et_slice.cpp"),
        f"-L{runtime}/lib",
        f"-Wl,-rpath,{runtime}/lib",
        "-lexecutorch",
    ]
    key = hashlib.sha256()
    for part in [
        *((sources / name).read_bytes() for name in ("et_slice.h", "et_slice.cpp")),
        version("executorch").encode(),
        _run([*compiler, "--version"]).encode(),
        "\0".join(command).encode(),
    ]:
        key.update(hashlib.sha256(part).digest())
    cache = _cache()
    library = cache / f"libet_slice-{key.hexdigest()[:32]}.so"
    if not library.exists():
        _build(command, library)
    _check_owner(library)
    return library


def _build(command: List[str], library: Path) -> None:
    """Puts the library in place at once, so that no process sees half of it."""
    with tempfile.TemporaryDirectory(dir=library.parent, prefix="build-") as folder:
        temporary = Path(folder, library.name)
        _run([*command, "-o", str(temporary)])
        temporary.chmod(0o700)
        temporary.replace(library)


def _run(command: List[str]) -> str:
    try:
        result = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise CompilationError(f"cannot run {command[0]}: {error}") from error
    if result.returncode:
        raise CompilationError(f"{shlex.join(command)} failed:\n{result.stdout}")
    return result.stdout


def _runtime_root() -> Path:
    """The folder of the installed ExecuTorch."""
    if not sys.platform.startswith("linux"):
        raise UnsupportedPlatformError(
            f"the kernels can be built on Linux only, not on {sys.platform}"
        )
    spec = find_spec("executorch")
    for folder in (spec and spec.submodule_search_locations) or ():
        if Path(folder, "lib", "libexecutorch.so").exists():
            return Path(folder)
    raise UnsupportedPlatformError(
        "the installed ExecuTorch has no lib/libexecutorch.so to register with"
    )


def _compiler() -> List[str]:
    """The compiler's path and the arguments that `CXX` has for it."""
    wanted = shlex.split(os.environ.get("CXX", ""))
    for name in wanted[:1] or COMPILERS:
        path = shutil.which(name)
        if path:
            return [path, *wanted[1:]]
    raise CompilerNotFoundError(
        f"no C++ compiler: {' '.join(wanted) or ', '.join(COMPILERS)} not found. "
        "Install one, point CXX at it, or point EXECUTORCH_SLICE_KERNELS at a "
        "library that was built elsewhere"
    )


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    own = os.environ.get("EXECUTORCH_SLICE_CACHE") or Path(base, "executorch-slice")
    cache = Path(own).absolute()
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_owner(cache)
    return cache


def _check_owner(path: Path) -> None:
    """Raises unless this user owns `path` and no other may write it."""
    info = path.stat()
    if info.st_uid != os.geteuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UntrustedCacheError(
            f"{path} belongs to user {info.st_uid}, mode {info.st_mode & 0o7777:o}: it "
            "must be this user's and writable by no other. Remove it, or set "
            "EXECUTORCH_SLICE_CACHE to another folder"
        )
