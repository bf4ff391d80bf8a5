# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Building, caching and loading the kernels."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Dict, List

import pytest
from executorch_slice import runtime
from executorch_slice.runtime import (
    CompilationError,
    CompilerNotFoundError,
    KernelsError,
    load_kernels,
    UnsupportedPlatformError,
    UntrustedCacheError,
)

LOAD = """
from executorch_slice.runtime import load_kernels
print(load_kernels())
assert load_kernels() is load_kernels()
"""
LIGHT = """
import sys
assert "torch" not in sys.modules and "executorch.exir" not in sys.modules
"""
OPERATORS = """
from executorch.extension.pybindings.portable_lib import _get_operator_names
names = _get_operator_names()
assert names.count("executorch_prim::et_slice.default") == 1
assert names.count("executorch_prim::et_select.default") == 1
"""
needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, runtime.COMPILERS)), reason="no C++ compiler"
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, in a process that has not called load_kernels()."""
    for name in ("CXX", "EXECUTORCH_SLICE_KERNELS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EXECUTORCH_SLICE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(runtime, "_loaded", None)
    return tmp_path / "cache"


def start(code: str, **env: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(processes: List["subprocess.Popen[str]"]) -> List[str]:
    """What each process printed to stdout."""
    results = [process.communicate() for process in processes]
    for process, (_, err) in zip(processes, results):
        assert process.returncode == 0, err
    return [out.strip() for out, _ in results]


@needs_compiler
def test_processes_share_one_library(cache: Path) -> None:
    first = finish([start(LOAD + LIGHT) for _ in range(2)])
    built = list(cache.iterdir())
    assert first == [str(built[0])] * 2 and len(built) == 1
    written = built[0].stat().st_mtime_ns
    assert finish([start(LOAD + OPERATORS)]) == first[:1]
    assert built[0].stat().st_mtime_ns == written


@needs_compiler
def test_another_build_is_another_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a second library in one process is harmless."""
    one = load_kernels()
    monkeypatch.setattr(runtime, "_loaded", None)
    assert load_kernels() == one
    monkeypatch.setattr(runtime, "_loaded", None)
    monkeypatch.setattr(runtime, "version", lambda package: "0.0")
    assert load_kernels() not in (one, None)


@needs_compiler
def test_prebuilt_library(monkeypatch: pytest.MonkeyPatch) -> None:
    library = load_kernels()
    monkeypatch.setattr(runtime, "_loaded", None)
    monkeypatch.setenv("EXECUTORCH_SLICE_KERNELS", str(library))
    monkeypatch.setenv("PATH", "")
    assert load_kernels() == library


@pytest.mark.parametrize("env", [{}, {"CXX": "/nonexistent/c++"}])
def test_no_compiler(env: Dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PATH": "", **env}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(CompilerNotFoundError, match=env.get("CXX", "clang")):
        load_kernels()


def test_missing_compiler_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    with pytest.raises(CompilerNotFoundError, match="/nonexistent/c++"):
        load_kernels()


@needs_compiler
def test_compilation_error(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "c++ -include nowhere.h")
    with pytest.raises(CompilationError, match="nowhere.h"):
        load_kernels()
    assert not list(cache.iterdir())


@needs_compiler
def test_cache_of_others(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.mkdir()
    cache.chmod(0o770)
    with pytest.raises(UntrustedCacheError, match="writable by no other"):
        load_kernels()
    cache.chmod(0o700)
    monkeypatch.setattr(runtime, "_loaded", None)
    load_kernels().chmod(0o702)
    monkeypatch.setattr(runtime, "_loaded", None)
    with pytest.raises(UntrustedCacheError, match="writable by no other"):
        load_kernels()


@needs_compiler
def test_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EXECUTORCH_SLICE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert load_kernels().parent == tmp_path / "xdg" / "executorch-slice"


def test_what_is_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.so").write_text("no library")
    for name in ("text.so", "missing.so"):
        monkeypatch.setenv("EXECUTORCH_SLICE_KERNELS", str(tmp_path / name))
        with pytest.raises(KernelsError, match=name):
            load_kernels()


def test_unsupported_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(UnsupportedPlatformError, match="win32"):
        load_kernels()


def test_executorch_without_runtime_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedPlatformError, match="libexecutorch.so"):
        load_kernels()
