# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Runs a planned program in Python, and shows what each of its nodes reads."""

import operator
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
from executorch.exir import memory
from executorch.exir.tensor import TensorSpec
from executorch_slice.exir.memory import is_alias
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

Read = Tuple[str, bytes]


class OutOfArena(Exception):
    """A tensor is planned past the end of its arena."""


class PlannedProgram:
    """The graph that is emitted, run by PyTorch's kernels on arenas as planned.

    Each tensor with a planned address lies there and nowhere else, as in the runtime;
    ops need no runtime kernel. Kernels soil their outs before they read. State lasts
    from one call to the next.

    Args:
        program: planned, ready to be emitted. `map` and `scan` are not supported.
    """

    def __init__(self, program: ExportedProgram) -> None:
        self._program = program
        self._arenas = [
            torch.full((size,), 0xA5, dtype=torch.uint8)
            for size in program.graph_module.meta["non_const_buffer_sizes"]
        ]
        inputs = [n for n in program.graph.nodes if n.op == "placeholder"]
        self._inputs = list(zip(inputs, program.graph_signature.input_specs))
        self._outputs: List[Tensor] = []
        kept: Dict[Any, Any] = {**program.state_dict, **program.constants}
        self._state = {
            node: self._placed(node, kept[spec.target])
            for node, spec in self._inputs
            if spec.kind is not InputKind.USER_INPUT
        }

    def __call__(self, *inputs: Tensor) -> List[Tensor]:
        for _ in self.reads(*inputs):
            pass
        return self._outputs

    def reads(self, *inputs: Tensor) -> Iterator[Read]:
        """Runs; yields each reader and the planned bytes it reads, as it happens."""
        given, values = iter(inputs), dict(self._state)
        for node, spec in self._inputs:
            if spec.kind is InputKind.USER_INPUT:
                values[node] = self._placed(node, next(given))
        module = self._program.graph_module
        yield from self._run(module, "", values)
        outputs: Any = module.graph.output_node().args[0]
        self._outputs = [values[node].clone() for node in outputs]
        for node, value in self._state.items():
            if node.name in self._program.graph_signature.inputs_to_buffers:
                yield f"the next run, {node.name}", _bytes(value)

    def _placed(self, node: Node, value: Tensor) -> Tensor:
        if node.meta["spec"].mem_offset is None:
            return value.clone()
        placed: Tensor = self._place(node.meta["spec"])
        return placed.copy_(value)

    def _run(
        self, module: GraphModule, prefix: str, values: Dict[Node, Any]
    ) -> Iterator[Read]:
        for node in module.graph.nodes:
            name = prefix + node.name
            if node.op == "get_attr":
                values[node] = getattr(module, node.target)
            elif node.op == "output":
                yield from self._read(name, node, values)
            elif node.target is memory.alloc:
                values[node] = tree_map(self._place, node.meta["spec"])
            elif node.target is operator.getitem:
                values[node] = values[node.args[0]][node.args[1]]
            elif is_alias(node):
                values[node] = self._alias(node, values)
            elif node.target is torch.ops.higher_order.cond:
                yield from self._read(name, node, values)
                predicate, *branches, operands = node.args
                branch = branches[0 if values[predicate].item() else 1]
                inner = values[branch]
                inputs = [n for n in inner.graph.nodes if n.op == "placeholder"]
                bound = dict(zip(inputs, (values[n] for n in operands)))
                yield from self._run(inner, f"{prefix}{branch.target}.", bound)
                results = tree_leaves(inner.graph.output_node().args)
                values[node] = [bound[n] for n in results]
            elif node.op == "call_function" and node.target is not memory.free:
                yield from self._kernel(name, node, values)

    def _kernel(self, name: str, node: Node, values: Dict[Node, Any]) -> Iterator[Read]:
        """Runs on copies of all arguments, and then stores what it has written."""
        outs, updated = written_arguments(node)
        if node.meta.get("_share_alloc_with_arg_idx") is None:
            for out in tree_leaves([values[n] for n in outs]):
                _bytes_of(out).fill_(0xA5)
        overwritten = updated if node.target is torch.ops.aten.copy_.default else []
        reads = [n for n in node.all_input_nodes if n not in (*outs, *overwritten)]
        yield from self._read(name, node, values, reads)
        copies = {
            n: tree_map_only(Tensor, torch.clone, values[n])
            for n in node.all_input_nodes
        }
        args, kwargs = tree_map_only(Node, copies.get, (node.args, node.kwargs))
        result = node.target(*args, **kwargs)  # type: ignore[operator]
        written = [*updated, *outs]
        places = tree_leaves([values[n] for n in written])
        for place, copy in zip(places, tree_leaves([copies[n] for n in written])):
            place.copy_(copy)
        if len(places) > 1:  # they may lie on each other
            for index, place in enumerate(places):
                yield f"after {name}, {index}", _bytes(place)
        if isinstance(result, (list, tuple)):
            values[node] = tree_leaves([values[n] for n in outs or updated])
        else:
            values[node] = values[[*outs, *updated][0]]

    def _alias(self, node: Node, values: Dict[Node, Any]) -> Tensor:
        spec: Any = node.meta["spec"]
        if spec.mem_offset is not None:
            placed: Tensor = self._place(spec)
            return placed
        base: Any = node.args[0]
        part: Tensor = node.target(  # type: ignore[operator]
            values[base], *node.args[1:]
        )
        return part

    def _place(self, spec: Any) -> Any:
        if not isinstance(spec, TensorSpec):
            return spec
        nbytes = spec.nbytes()
        if spec.mem_offset is None:
            flat = torch.zeros(nbytes, dtype=torch.uint8)
        else:
            arena, end = self._arenas[spec.mem_id], spec.mem_offset + nbytes
            if not 0 <= spec.mem_offset <= end <= len(arena):
                raise OutOfArena(f"bytes {spec.mem_offset} to {end}")
            flat = arena[spec.mem_offset : end]
        typed = flat.view(spec.dtype)
        return typed.as_strided(spec.shape, spec.stride, typed.storage_offset())

    def _read(
        self,
        name: str,
        node: Node,
        values: Dict[Node, Any],
        reads: Optional[Sequence[Node]] = None,
    ) -> Iterator[Read]:
        for index, argument in enumerate(node.all_input_nodes):
            if reads is None or argument in reads:
                for leaf in tree_leaves(values[argument]):
                    if isinstance(leaf, Tensor) and self._is_planned(leaf):
                        yield f"{name}, argument {index}", _bytes(leaf)

    def _is_planned(self, value: Tensor) -> bool:
        """Whether it lies in an arena; weights do not, and nobody overwrites them."""
        at = value.untyped_storage().data_ptr()
        return any(at == arena.untyped_storage().data_ptr() for arena in self._arenas)


def written_arguments(node: Node) -> Tuple[List[Node], List[Node]]:
    """The out arguments of an operator, and those that it updates in place."""
    outs: List[Node] = []
    updated: List[Node] = []
    for position, argument in enumerate(node.target._schema.arguments):  # type: ignore
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = node.kwargs.get(argument.name)
            if given is None and position < len(node.args):
                given = node.args[position]
            nodes = [n for n in tree_leaves(given) if isinstance(n, Node)]
            (outs if argument.is_out else updated).extend(nodes)
    return outs, updated


def _bytes_of(value: Tensor) -> Tensor:
    """The bytes of a dense tensor, in the order that they lie in."""
    flat = value.as_strided((value.numel(),), (1,), value.storage_offset())
    return flat.view(torch.uint8)


def _bytes(value: Tensor) -> bytes:
    return _bytes_of(value).numpy().tobytes()
