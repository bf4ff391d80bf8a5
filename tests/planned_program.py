# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Runs a planned program in Python, for ops that no runtime kernel exists for."""

from typing import Any, List

import torch
from executorch.exir import ExecutorchProgramManager, memory
from executorch.exir.tensor import TensorSpec
from executorch_slice.exir.memory import is_alias
from torch import Tensor
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node
from torch.utils._pytree import tree_map, tree_map_only


class PlannedProgram:
    """The graph that is emitted, run by PyTorch's kernels on arenas as planned.

    Each tensor with a planned address lies there and nowhere else, as in the runtime.
    """

    def __init__(self, manager: ExecutorchProgramManager) -> None:
        self._program = manager.exported_program()
        self._nodes = list(self._program.graph.nodes)
        sizes = self._program.graph_module.meta["non_const_buffer_sizes"]
        self._arenas = [torch.full((size,), 0xA5, dtype=torch.uint8) for size in sizes]
        self._kept = {**self._program.state_dict, **self._program.constants}
        self._values: dict = {}
        for node, spec in zip(self._nodes, self._program.graph_signature.input_specs):
            if spec.kind is not InputKind.USER_INPUT:
                self._set(node, self._kept[spec.target])

    def __call__(self, *inputs: Tensor) -> List[Tensor]:
        signature = self._program.graph_signature
        user_inputs = iter(inputs)
        for node, spec in zip(self._nodes, signature.input_specs):
            if spec.kind is InputKind.USER_INPUT:
                self._set(node, next(user_inputs))
        for node in self._nodes:
            if node.op == "call_function":
                self._values[node] = self._call(node)
        outputs = [self._values[node] for node in self._nodes[-1].args[0]]
        return [
            output.clone()
            for output, spec in zip(outputs, signature.output_specs)
            if spec.kind is not OutputKind.BUFFER_MUTATION
        ]

    def _set(self, node: Node, value: Tensor) -> None:
        self._values[node] = value.clone()
        if node.meta["spec"].mem_offset is not None:
            self._values[node] = self._at(node.meta["spec"]).copy_(value)

    def _call(self, node: Node) -> Any:
        spec: Any = node.meta["spec"]
        if is_alias(node) and spec.mem_offset is None:
            return self._values[node.args[0]].view(spec.shape)
        if node.target is memory.alloc or is_alias(node):
            return tree_map(self._at, spec)
        args, kwargs = tree_map_only(Node, self._values.get, (node.args, node.kwargs))
        return node.target(*args, **kwargs)  # type: ignore[operator]

    def _at(self, spec: TensorSpec) -> Tensor:
        arena = self._arenas[spec.mem_id]
        own = arena[spec.mem_offset : spec.mem_offset + spec.nbytes()]
        return own.view(spec.dtype).as_strided(spec.shape, spec.stride)
