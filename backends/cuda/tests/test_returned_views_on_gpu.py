# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Returned views on a GPU: values, latency with and without copies, CUDA graphs.

As tests, they are skipped without a GPU and without ExecuTorch's CUDA backend. Run as
a script, prints Markdown:

    python backends/cuda/tests/test_returned_views_on_gpu.py

Latency is the median of single calls through ExecuTorch's Python runtime, which wait
for their outputs. Stock is a lowering within ``executorch_slice.disabled()``. Whether
the runtime replays a CUDA graph is seen in a profile of one call.
"""

import ctypes
import functools
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import executorch
import pytest
import torch
from executorch.exir import to_edge_transform_and_lower
from executorch.runtime import Method, Runtime
from executorch_slice import disabled
from torch import nn, Tensor

METHOD, WARM_UP, CALLS = "forward", 10, 200  # a CUDA graph is captured in the warm-up


class Policy(nn.Module):
    """The end of a robot policy: a projection, of which a part is returned."""

    def __init__(self, part: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.proj = nn.Linear(1024, 32)
        self.part = part

    def forward(self, x: Tensor) -> Any:
        return self.part(self.proj(x))


PARTS: Dict[str, Callable[[Tensor], Any]] = {
    "proj(x)[:, :, :14]": lambda y: y[:, :, :14],
    "proj(x)[:, -1]": lambda y: y[:, -1],
    "proj(x).chunk(2, -1)": lambda y: y.chunk(2, -1),
}


def has_cuda() -> bool:
    runtime = Runtime.get()
    is_available = runtime.backend_registry.is_available("CudaBackend")
    return is_available and torch.cuda.is_available()


SET_OPTION = """
#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/backend/options.h>

extern "C" bool use_cuda_graph(const char* method) {
  executorch::runtime::BackendOptions<1> options;
  options.set_option("enable_cuda_graph_for_method", method);
  return executorch::runtime::set_option("CudaBackend", options.view()) ==
      executorch::runtime::Error::Ok;
}
"""


@functools.lru_cache(maxsize=None)
def backend_options() -> ctypes.CDLL:
    """A library that sets an option of the CUDA backend: Python has no way to."""
    package = Path(list(executorch.__path__)[0])
    include, lib = package / "include", package / "lib"
    library = Path(tempfile.mkdtemp()) / "backend_options.so"
    subprocess.run(
        [
            *("c++", "-x", "c++", "-", "-std=c++17", "-shared", "-fPIC"),
            *("-DC10_USING_CUSTOM_GENERATED_MACROS", "-o", str(library)),
            *(f"-I{include}", f"-I{include}/executorch/runtime/core/portable_type/c10"),
            *(f"-L{lib}", f"-Wl,-rpath,{lib}", "-lexecutorch"),
        ],
        input=SET_OPTION,
        text=True,
        check=True,
    )
    options = ctypes.CDLL(str(library))
    options.use_cuda_graph.restype = ctypes.c_bool
    return options


def lower(module: nn.Module, inputs: Tuple[Tensor, ...], folder: Path) -> Path:
    """Writes the program and its weights into `folder`; returns the program's path."""
    from executorch.backends.cuda.cuda_backend import CudaBackend
    from executorch.backends.cuda.cuda_partitioner import CudaPartitioner

    specs = [CudaBackend.generate_method_name_compile_spec(METHOD)]
    manager = to_edge_transform_and_lower(
        torch.export.export(module, inputs), partitioner=[CudaPartitioner(specs)]
    ).to_executorch()
    path = folder / "program.pte"
    path.write_bytes(manager.buffer)
    manager.write_tensor_data_to_file(str(folder))
    return path


def load(path: Path, cuda_graph: bool) -> Method:
    """The option holds for methods that are loaded after it was set."""
    enabled = METHOD if cuda_graph else ""
    assert backend_options().use_cuda_graph(enabled.encode())
    data = next(path.parent.glob("*.ptd"), None)
    method = Runtime.get().load_program(path, data_path=data).load_method(METHOD)
    assert method is not None
    return method


def latency(method: Method, inputs: Tuple[Tensor, ...]) -> float:
    """The median of ``CALLS`` calls in microseconds, after ``WARM_UP``."""
    times: List[float] = []
    for _ in range(WARM_UP + CALLS):
        start = time.perf_counter()
        method.execute(inputs)
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times[WARM_UP:])


def replays_cuda_graph(method: Method, inputs: Tuple[Tensor, ...]) -> bool:
    """Whether a call, after the warm-up, launches a captured graph."""
    for _ in range(WARM_UP):
        method.execute(inputs)
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        method.execute(inputs)
        torch.cuda.synchronize()
    return any("cudaGraphLaunch" in event.name for event in profile.events())


def measured(part: str) -> List[str]:
    """Latency in microseconds and whether a graph is replayed: stock's, and ours."""
    torch.manual_seed(0)
    module, inputs = Policy(PARTS[part]).eval(), (torch.randn(1, 16, 1024),)
    cells = []
    for is_stock in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            try:
                if is_stock:
                    with disabled():
                        path = lower(module, inputs, Path(folder))
                else:
                    path = lower(module, inputs, Path(folder))
                for cuda_graph in (False, True):
                    method = load(path, cuda_graph)
                    cells.append(f"{latency(method, inputs):.1f}")
                cells.append("yes" if replays_cuda_graph(method, inputs) else "no")
            except RuntimeError as error:  # stock lowers no chunk, may run no view
                if not is_stock:
                    raise
                print(f"{part}, stock: {error}", file=sys.stderr)
                cells += ["fails"] * (3 - len(cells))
    return cells


@pytest.mark.skipif(not has_cuda(), reason="needs a GPU and ExecuTorch's CUDA backend")
@pytest.mark.parametrize("part", PARTS)
def test_values_and_cuda_graph(part: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, inputs = Policy(PARTS[part]).eval(), (torch.randn(1, 16, 1024),)
    path = lower(module, inputs, tmp_path)
    want = module(*inputs)
    for cuda_graph in (False, True):
        method = load(path, cuda_graph)
        for _ in range(WARM_UP):
            got = method.execute(inputs)
            for a, b in zip(got, [want] if isinstance(want, Tensor) else want):
                torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-2)
    assert replays_cuda_graph(method, inputs)


def main() -> int:
    if not has_cuda():
        print("needs a GPU and ExecuTorch's CUDA backend", file=sys.stderr)
        return 1
    side = ["us", "us, CUDA graph on", "graph replayed"]
    print(
        "| program |", " | ".join(f"{s}: {c}" for s in ("stock", "ours") for c in side)
    )
    print("| --- |" + " ---: |" * 6)
    for part in PARTS:
        print(f"| `{part}` |", " | ".join(measured(part)), "|")
    return 0


if __name__ == "__main__":
    sys.exit(main())
