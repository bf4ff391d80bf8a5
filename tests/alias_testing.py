# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""What the tests share: small graphs with specs, and programs that are run."""

import copy
import operator
from typing import Any, Callable, List, Tuple

import torch
from executorch.exir import EdgeCompileConfig, ExecutorchProgramManager, to_edge
from executorch.exir.operator.convert import unwrap_op_overload
from executorch.exir.tensor import TensorSpec
from executorch_slice import (
    AliasConfig,
    decisions,
    ExecutorchBackendConfig as AliasBackendConfig,
)
from executorch_slice.compare import LoadedProgram
from executorch_slice.cost import program_cost
from executorch_slice.exir.verification.plan_verifier import (
    PlanVerificationError,
    verify_plan,
)
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.utils._pytree import tree_leaves, tree_map_only


class GraphBuilder:
    """Builds a graph node by node, each with its fake value and its specs."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)

    def input(
        self,
        *shape: int,
        dtype: torch.dtype = torch.float32,
        memory_format: torch.memory_format = torch.contiguous_format,
        const: bool = False,
        buffer: bool = False,
    ) -> Node:
        node = self.graph.placeholder(f"input_{len(self.graph.nodes)}")
        with self.mode:
            value = torch.empty(shape, dtype=dtype).to(memory_format=memory_format)
        self._describe(node, value)
        node.meta["spec"].const = const
        node.meta["is_mutable_buffer"] = buffer
        return node

    def call(self, op: Any, *args: Any, **kwargs: Any) -> Node:
        node = self.graph.call_function(op, args, kwargs)
        values = tree_map_only(Node, lambda n: n.meta["val"], (args, kwargs))
        with self.mode:
            run = op if op is operator.getitem else unwrap_op_overload(op)
            self._describe(node, run(*values[0], **values[1]))
        return node

    def piece(self, split: Node, index: int) -> Node:
        node = self.call(operator.getitem, split, index)
        node.meta["spec"] = split.meta["spec"][index]
        return node

    def build(self, *outputs: Node) -> GraphModule:
        output = self.graph.output(outputs)
        output.meta["spec"] = tuple(node.meta["spec"] for node in outputs)
        return GraphModule({}, self.graph)

    def _describe(self, node: Node, value: Any) -> None:
        node.meta["val"] = value
        node.meta["tensor_meta"] = None
        node.meta["spec"] = tree_map_only(Tensor, TensorSpec.from_tensor, value)


class Fn(torch.nn.Module):
    """A module of one function of its inputs."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Tensor) -> Any:
        return self.fn(*args)


def has_right_plan(manager: ExecutorchProgramManager) -> bool:
    """Whether the verifier accepts the plan of method `forward`."""
    try:
        verify_plan(manager.exported_program())
        return True
    except PlanVerificationError:
        return False


def arange(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)


def nodes_of(graph_module: GraphModule, *targets: Any) -> List[Node]:
    """Nodes with one of the `targets`, in graph order."""
    return [node for node in graph_module.graph.nodes if node.target in targets]


def lower(
    module: torch.nn.Module,
    inputs: Tuple[Any, ...],
    config: Any = None,
    dynamic_shapes: Any = None,
    skip_dim_order: bool = False,
) -> ExecutorchProgramManager:
    """Lowers with all aliases that are safe, unless `config` says otherwise."""
    exported = torch.export.export(
        copy.deepcopy(module), inputs, dynamic_shapes=dynamic_shapes, strict=False
    )
    edge = to_edge(
        exported, compile_config=EdgeCompileConfig(_skip_dim_order=skip_dim_order)
    )
    return edge.to_executorch(config or all_safe_aliases())


def all_safe_aliases(**options: Any) -> AliasBackendConfig:
    """A config with stock's `options` in which aliases may grow the arena."""
    return AliasBackendConfig(alias=AliasConfig(memory_growth="allow"), **options)


def assert_runs_as_eager(
    module: torch.nn.Module,
    inputs: Tuple[Any, ...],
    manager: ExecutorchProgramManager,
    rounds: int = 3,
) -> None:
    """Runs both for several rounds, with other values and with state that advances."""
    eager, program = copy.deepcopy(module), LoadedProgram(manager)
    for round_ in range(rounds):
        args = [shifted(arg, round_) for arg in inputs]
        want = tree_leaves(eager(*copy.deepcopy(args)))
        got = program(*args)
        assert len(got) == len(want)
        for g, w in zip(got, want):
            torch.testing.assert_close(g, w)


def assert_equals_eager(
    program: LoadedProgram, fn: Callable[..., Any], *inputs: Any
) -> None:
    """Runs both once, and compares shapes and values, bit for bit."""
    got, want = program(*inputs), tree_leaves(fn(*inputs))
    assert len(got) == len(want)
    for g, w in zip(got, want):
        assert g.shape == w.shape and torch.equal(g, w)


def shifted(arg: Any, by: int) -> Any:
    """`arg` with other values; ints stay, since they may be indices."""
    if isinstance(arg, Tensor) and arg.is_floating_point():
        return arg + by
    return arg


def assert_no_larger(
    stock: ExecutorchProgramManager, aliased: ExecutorchProgramManager
) -> None:
    """Neither more instructions nor more bytes than stock's program."""
    before, after = program_cost(stock), program_cost(aliased)
    assert after.slice_instructions <= before.slice_instructions
    assert after.instructions <= before.instructions
    assert after.pte_bytes <= before.pte_bytes
    assert after.arena_bytes <= before.arena_bytes


def slice_kernels(manager: ExecutorchProgramManager) -> int:
    return program_cost(manager).slice_instructions


def operators(manager: ExecutorchProgramManager) -> List[str]:
    """Names of the operators that the methods of a program call."""
    plans = manager.executorch_program.execution_plan
    return [op.name for plan in plans for op in plan.operators]


def reasons(manager: ExecutorchProgramManager) -> List[str]:
    """Names of the reasons of all decisions, in graph order."""
    return [decision.reason.name for decision in decisions(manager)]
