# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Gives each branch of `torch.cond` results that are its own to place."""

import operator
from typing import List, Set

import torch
from executorch.exir.tensor import TensorSpec
from executorch_slice.exir.alias_effects import (
    control_flow_modules,
    graph_outputs,
    MemoryEffects,
    OWNS_RESULTS,
)
from executorch_slice.exir.memory import is_alias
from executorch_slice.exir.memory_planning import share_inplace_specs
from executorch_slice.exir.passes.clone_node import clone_node
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassBase, PassResult


class OwnBranchResultsPass(PassBase):  # type: ignore[misc]
    """Copies what a branch of `torch.cond` returns where it did not compute it.

    A branch hands its results out by pointer. Memory planning places each in the slot
    that the caller reserves for the result of the cond, which is right for a tensor
    that the branch computes and returns once. An operand, a constant or a second
    mention of a result gets a `clone`. So does the result of a cond that the method
    returns, where outputs are not memory planned: what the runtime then points at the
    caller's memory is the branch's tensor, which a later run would still write there.

    Args:
        graph_outputs: whether the outputs of the method are memory planned.
    """

    def __init__(self, graph_outputs: bool = True) -> None:
        super().__init__()
        self.graph_outputs = graph_outputs

    def call(self, graph_module: GraphModule) -> PassResult:
        modified = False
        for module in list(graph_module.modules()):
            for cond in _conds(module) if isinstance(module, GraphModule) else ():
                for branch in control_flow_modules(module, cond):
                    share_inplace_specs(branch)
                    modified |= _clone_outputs(branch, _not_owned(branch))
                cond.meta[OWNS_RESULTS] = True
        if not self.graph_outputs:
            modified |= _clone_outputs(graph_module, _cond_results(graph_module))
        return PassResult(graph_module, modified)


def _conds(module: GraphModule) -> List[Node]:
    cond = torch.ops.higher_order.cond
    return list(module.graph.find_nodes(op="call_function", target=cond))


def _not_owned(branch: GraphModule) -> List[int]:
    """Positions of outputs that the branch has not computed, or returns again."""
    effects = MemoryEffects(branch)
    seen: Set[Node] = set()
    found = []
    for position, node in enumerate(graph_outputs(branch)):
        if isinstance(node, Node) and isinstance(node.meta.get("spec"), TensorSpec):
            root = effects.roots[node]
            if root.op != "call_function" or is_alias(root) or root in seen:
                found.append(position)
            seen.add(root)
    return found


def _cond_results(module: GraphModule) -> List[int]:
    return [
        position
        for position, node in enumerate(graph_outputs(module))
        if isinstance(node, Node)
        and node.target is operator.getitem
        and node.all_input_nodes[0].meta.get(OWNS_RESULTS, False)
    ]


def _clone_outputs(module: GraphModule, positions: List[int]) -> bool:
    """Clones the outputs at `positions`; the specs of `output` are up to date then."""
    output, outputs = module.graph.output_node(), graph_outputs(module)
    for position in positions:
        node = outputs[position]
        with module.graph.inserting_before(output):
            clone = clone_node(node, torch.ops.aten.clone.default, node.meta["val"])
        outputs[position] = clone
    output.args = (tuple(outputs),)
    output.meta["spec"] = tuple(
        node.meta.get("spec") if isinstance(node, Node) else None for node in outputs
    )
    module.recompile()
    return bool(positions)
