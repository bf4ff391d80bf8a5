# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""The table of safe roots: which tensors have a fixed address at lowering."""

import operator
from dataclasses import dataclass
from typing import AbstractSet, Any, Callable, List, Optional

from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite
from executorch.exir.schema import DeviceType
from executorch.exir.tensor import ALIGNMENT, TensorSpec
from executorch_slice.exir.alias_decision import Reason
from executorch_slice.exir.alias_effects import CONTROL_FLOW, OWNS_RESULTS
from executorch_slice.exir.alias_layout import overload_of
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

# Delegates that write their outputs where the planner put them. Others may point
# an output at memory of their own.
IN_PLACE_DELEGATES = frozenset({"XnnpackBackend"})

_PLANNED_CALLS = CONTROL_FLOW | {executorch_call_delegate}


@dataclass(frozen=True)
class PlannedMemory:
    """What the memory planner will give an address, and whether it is known to.

    Attributes:
        graph_inputs: user inputs of the method.
        graph_outputs: outputs of the method.
        mutable_buffers: buffers that the method writes.
        shared_buffers: whether those are placed after all methods have been planned.
        trusted: the planner is ExecuTorch's own.
        algorithm: what places the tensors, as `apply_algo` of
            ``executorch.exir.memory_planning`` calls it.
        alignment: of each tensor, in bytes.
        by_device: whether memory of other devices than the CPU is planned apart.
        constant_alignment: of each constant in the program, in bytes; None where
            constants are not, or not all, stored in it.
    """

    graph_inputs: bool = True
    graph_outputs: bool = True
    mutable_buffers: bool = True
    shared_buffers: bool = False
    trusted: bool = True
    algorithm: Callable[..., List[int]] = MemoryPlanningAlgorithmSuite()
    alignment: int = ALIGNMENT
    by_device: bool = False
    constant_alignment: Optional[int] = None


class SafeRoots:
    """Tells the roots of one graph that have an address from those that have none.

    Args:
        module: a method's graph, or a branch of its control flow.
        memory: what the planner will place.
        is_method: False for a branch, whose placeholders are bound at run time.
        rows: placeholders of a branch that are planned with it instead.
    """

    def __init__(
        self,
        module: GraphModule,
        memory: PlannedMemory,
        is_method: bool,
        rows: AbstractSet[Node],
    ) -> None:
        self.module = module
        self.memory = memory
        self.is_method = is_method
        self.rows = rows
        output = module.graph.output_node()
        self._output_specs = {id(s) for s in tree_leaves(output.meta.get("spec"))}

    def why_unplaced(self, root: Node) -> Optional[Reason]:
        """Why `root` has no fixed address at lowering; None where it has one."""
        spec = root.meta.get("spec")
        if not isinstance(spec, TensorSpec):
            return Reason.NO_SPEC
        if spec.device != DeviceType.CPU:
            return Reason.DEVICE
        if spec.is_dynamic_shape_tensor:
            return Reason.DYNAMIC
        if spec.const or root.op == "get_attr":
            return Reason.CONSTANT
        if root.op == "placeholder":
            reason = self._why_unplaced_input(root)
        else:
            reason = self._why_unplaced_result(root)
        return reason or (None if self.memory.trusted else Reason.CUSTOM_PLANNER)

    def _why_unplaced_input(self, root: Node) -> Optional[Reason]:
        if not self.is_method:
            return None if root in self.rows else Reason.CONTROL_FLOW_OPERAND
        if root.meta.get("is_mutable_buffer", False):
            return None if self.memory.mutable_buffers else Reason.UNPLANNED_BUFFER
        return None if self.memory.graph_inputs else Reason.UNPLANNED_INPUT

    def _why_unplaced_result(self, root: Node) -> Optional[Reason]:
        producer: Any = root.args[0] if root.target is operator.getitem else root
        if producer.target in CONTROL_FLOW:
            if not producer.meta.get(OWNS_RESULTS, False):
                return Reason.CONTROL_FLOW_RESULT
        if producer.target is executorch_call_delegate:
            lowered = getattr(self.module, producer.args[0].target)
            if lowered.backend_id not in IN_PLACE_DELEGATES:
                return Reason.DELEGATE_OUTPUT
        is_output = self.is_method and id(root.meta["spec"]) in self._output_specs
        if is_output and not self.memory.graph_outputs:
            return Reason.UNPLANNED_OUTPUT
        known = overload_of(producer) is not None or producer.target in _PLANNED_CALLS
        return None if known else Reason.UNKNOWN_BASE
