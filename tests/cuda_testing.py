# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""The CUDA backend without a GPU: its graphs, and its libraries compiled for the CPU.

The backend's module imports Triton, for kernels that nothing here uses. Where that is
not installed, a stub stands in for it during the import.
"""

import ctypes
import re
import sys
import tempfile
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple
from unittest import mock

import torch
import torch._inductor.lowering  # noqa: F401 (looks for Triton: before the stub)
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch import nn, Tensor
from torch.export import ExportedProgram
from torch.export.pt2_archive._package_weights import Weights
from torch.fx import GraphModule


class _Stub(ModuleType):
    """A module that has every attribute; decorators return what they are given."""

    __path__: List[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _decorate if name in ("autotune", "heuristics", "jit") else mock.Mock()


def _decorate(*args: Any, **options: Any) -> Any:
    is_bare = len(args) == 1 and callable(args[0]) and not options
    return args[0] if is_bare else lambda function: function


def _import_cuda_backend() -> Tuple[Any, Any]:
    names = () if find_spec("triton") else ("triton", "triton.language")
    sys.modules.update((name, _Stub(name)) for name in names)
    try:
        from executorch.backends.cuda.cuda_backend import CudaBackend
        from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
    finally:
        for name in names:
            del sys.modules[name]
    return CudaBackend, CudaPartitioner


CudaBackend, CudaPartitioner = _import_cuda_backend()
SPECS = [
    CudaBackend.generate_method_name_compile_spec("forward"),
    CompileSpec("max_autotune", b"OFF"),
    CompileSpec("triton_kernel_mode", b"OFF"),
]
# Calls into ATen that a program of pointwise ops and copies has no need of.
FALLBACK = re.compile(
    r"aoti_torch_(?:proxy_executor_call|call_dispatcher|clone|cpu_)\w*(?=\()"
)


def lower(
    module: nn.Module,
    inputs: Tuple[Any, ...],
    specs: Sequence[CompileSpec] = (),
    dynamic_shapes: Any = None,
    **config: Any,
) -> ExportedProgram:
    """Lowers `module` by ``CudaPartitioner``; `config` is for ``EdgeCompileConfig``."""
    exported = torch.export.export(module, inputs, dynamic_shapes=dynamic_shapes)
    return to_edge_transform_and_lower(
        exported,
        partitioner=[CudaPartitioner([*SPECS, *specs])],
        compile_config=EdgeCompileConfig(**config),
    ).exported_program()


class _Stop(Exception):
    """Ends a lowering where AOTInductor is called."""


def graph_for_inductor(lowering: Callable[[], Any]) -> GraphModule:
    """What a lowering by the CUDA backend passes to AOTInductor, which does not run."""
    compiler = mock.Mock(side_effect=_Stop)
    try:
        with _on_cpu(compiler):
            lowering()
    except _Stop:
        pass
    graph: GraphModule = compiler.call_args.args[0]
    return graph


@contextmanager
def _on_cpu(compiler: Callable[..., Any]) -> Iterator[None]:
    """The CUDA backend lowers for the CPU, and calls `compiler` for AOTInductor."""
    device = mock.patch.object(CudaBackend, "get_device_name", return_value="cpu")
    with device, mock.patch.object(torch._inductor, "aot_compile", compiler):
        yield


class Compiled:
    """A library that the CUDA backend compiled for the CPU.

    Attributes:
        code: the C++ of it.
        lowered: what the lowering returned.
    """

    code: str

    def __init__(self, lowering: Callable[[], Any]) -> None:
        self._compile = torch._inductor.aot_compile
        with _on_cpu(self._compile_and_keep):
            self.lowered = lowering()

    def _compile_and_keep(self, *args: Any, **kwargs: Any) -> Any:
        """The backend deletes the library once it has read it."""
        made = self._compile(*args, **kwargs)
        files = [Path(file) for file in made if isinstance(file, str)]
        self.code = "".join(f.read_text() for f in files if f.suffix == ".cpp")
        (library,) = (file.read_bytes() for file in files if file.suffix == ".so")
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            file.write(library)
            file.flush()
            torch_cpu = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
            ctypes.CDLL(str(torch_cpu), ctypes.RTLD_GLOBAL)
            self._runner = torch._C._aoti.AOTIModelContainerRunnerCpu(file.name, 1)
        weights: Dict[str, Tensor] = {
            name: weight
            for weights in made
            if isinstance(weights, Weights)
            for name, (weight, _) in weights.items()
        }
        names = self._runner.get_constant_names_to_original_fqns()
        constants = {name: weights[fqn] for name, fqn in names.items()}
        self._runner.update_constant_buffer(constants, False, True)
        return made

    def fallbacks(self) -> List[str]:
        """Calls of kernels that Inductor did not generate."""
        return FALLBACK.findall(self.code)

    def __call__(self, *inputs: Tensor) -> List[Tensor]:
        """The outputs as the library returns them, with strides and storage offset."""
        outputs: List[Tensor] = self._runner.run(list(inputs))
        return outputs


def is_exact(tensor: Tensor) -> bool:
    """Whether strides are those of a new tensor, of size-1 dims too, at offset 0."""
    return tensor.stride() == torch.empty(tensor.shape).stride() and (
        tensor.storage_offset() == 0
    )
