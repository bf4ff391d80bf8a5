# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""``_ViewSpec`` with a byte offset, and view elision that asks the analysis."""

import math
from typing import Any, List, Optional, Sequence

from executorch.exir import memory
from executorch.exir.passes import replace_view_copy_with_view_pass as upstream
from executorch.exir.tensor import stride_from_dim_order, TensorSpec
from executorch_slice.exir.alias_copy import Copy
from executorch_slice.exir.alias_decision import Reason
from executorch_slice.exir.passes.analyze_aliases_pass import (
    analysed,
    AnalyzeAliasesPass,
)
from torch.fx import GraphModule
from torch.fx.passes.infra.pass_base import PassResult


class _ViewSpec(upstream._ViewSpec):
    """A TensorSpec for a byte range of its base.

    Without `byte_offset` it is upstream's view: all bytes of `base` under another
    shape. With it, the spec stands for the dense tensor of `shape` that starts
    `byte_offset` bytes into `base`. A base that is itself a _ViewSpec is flattened:
    `_base` is the root, and the attribute `byte_offset` counts from there.

    `mem_offset` is the root's plus `byte_offset`, derived on access, so it follows
    whatever planner moves the root. A range smaller than the root does not inherit
    its constness, storage or name: a program cannot address the middle of a
    constant.

    Args:
        base: spec of the tensor that this one is taken from.
        shape: sizes in elements; integers where `byte_offset` is given.
        byte_offset: bytes from the start of `base`; None for a whole view.
        dim_order: dims from outermost to innermost; the default is contiguous.

    Raises:
        ValueError: the range does not lie in `base`, or is part of a constant.
        Exception: as upstream, where a whole view does not fit its base.
    """

    byte_offset: int
    _base_fields: List[str]
    _guards: List[upstream._Guard]
    _passed_guards: Any

    def __init__(
        self,
        base: TensorSpec,
        shape: Sequence[int],
        byte_offset: Optional[int] = None,
        dim_order: Optional[Sequence[int]] = None,
    ) -> None:
        root, start = base, 0
        if isinstance(base, _ViewSpec):
            root, start = base._base, base.byte_offset
        is_whole = byte_offset is None and base.nbytes() == root.nbytes()
        super().__init__(root, shape if is_whole else root.shape)
        self._base_fields.remove("mem_offset")
        self._self_fields += ["mem_offset", "byte_offset"]
        self.byte_offset = start
        if not is_whole:
            self._unguarded_access = True
            self._narrow(base, list(shape), byte_offset, dim_order)
            self._unguarded_access = False
            self._passed_guards = None  # they are other ones now

    def _narrow(
        self,
        base: TensorSpec,
        shape: Sequence[int],
        byte_offset: Optional[int],
        dim_order: Optional[Sequence[int]],
    ) -> None:
        """Turns this whole view of the root into one of a part of `base`."""
        nbytes = math.prod(shape) * self.dtype.itemsize
        start = byte_offset or 0
        if byte_offset is None and nbytes != base.nbytes():
            raise ValueError(
                f"A view of shape {shape} has {nbytes} bytes, but its base has "
                f"{base.nbytes()}; give the byte_offset of a part."
            )
        if not 0 <= start <= base.nbytes() - nbytes:
            raise ValueError(
                f"Bytes {start} to {start + nbytes} (shape {shape}) do not lie within "
                f"the {base.nbytes()} bytes of the base."
            )
        if nbytes != self._base.nbytes():
            if self._base.const:
                raise ValueError("A part of a constant has no address in a program.")
            own = ["const", "storage", "extra_tensor_info"]
            self._base_fields = [f for f in self._base_fields if f not in own]
            self._self_fields += own
            self.const, self.storage, self.extra_tensor_info = False, None, None
        self._guards = [guard for guard in self._guards if guard.name != "rank"]
        self._guards.append(
            upstream._Guard("shape", lambda spec: list(spec.shape), list(shape))
        )
        self.shape = list(shape)
        self.dim_order = tuple(range(len(shape)) if dim_order is None else dim_order)
        self.stride = tuple(stride_from_dim_order(self.shape, list(self.dim_order)))
        self.byte_offset += start

    def _run_guards(self) -> None:
        """Upstream's, if what the guards look at has changed since they passed."""
        own = object.__getattribute__(self, "__dict__")
        base = self._base
        # To compare a size that depends on data would raise.
        shape = [n if isinstance(n, int) else str(n) for n in own.get("shape", ())]
        seen = (
            (own.get("shape_dynamism"), shape),
            (base.is_sparse, base.layout, base.scalar_type, base.shape_dynamism),
        )
        if seen != own.get("_passed_guards"):
            super()._run_guards()
            self._passed_guards = seen

    @property
    def mem_offset(self) -> Optional[int]:
        """Bytes from the start of the arena; None until the root is planned."""
        offset: Optional[int] = self._base.mem_offset
        return None if offset is None else offset + self.byte_offset

    @mem_offset.setter
    def mem_offset(self, value: Optional[int]) -> None:
        self._base.mem_offset = None if value is None else value - self.byte_offset


# Such roots have a planned offset, but their values point elsewhere when the program
# runs. Their views keep specs of their own, which stay unplanned: `et_view` instead.
# (A copy that is `moved` lies in such a value, whatever its root.)
_MOVED_AT_RUN_TIME = frozenset(
    {
        Reason.CONTROL_FLOW_OPERAND,
        Reason.CONTROL_FLOW_RESULT,
        Reason.DELEGATE_OUTPUT,
    }
)


def joined_spec(copy: Copy) -> TensorSpec:
    """The spec of a copy that lies in its base: an alias gets a part of its root's."""
    spec = copy.node.meta["spec"]
    if not copy.kernel:
        return _ViewSpec(
            copy.root.meta["spec"], spec.shape, copy.byte_offset, spec.dim_order
        )
    if copy.moved or copy.reason in _MOVED_AT_RUN_TIME:
        return spec
    return _ViewSpec(copy.base.meta["spec"], copy.node.meta["val"].shape)


class ReplaceViewCopyWithViewPass(upstream.ReplaceViewCopyWithViewPass):
    """Turns view copies into `memory.view`, except where the analysis says copy.

    Args:
        analysis: a pass that has analysed the graph; without one, this pass
            analyses the graph that it is called with.
    """

    def __init__(self, analysis: Optional[AnalyzeAliasesPass] = None) -> None:
        super().__init__()
        self.analysis = analysis

    def call(self, graph_module: GraphModule) -> PassResult:
        self._analysed = analysed(graph_module, self.analysis)
        views = [c for c in self._analysed.copies() if c.is_view and c.joined]
        for view in views:
            view.node.target = memory.view
            view.node.meta["spec"] = joined_spec(view)
        for module in self._analysed.analyses:
            module.recompile()
        return PassResult(graph_module, bool(views))

    def ensures(self, graph_module: GraphModule) -> None:
        """Each safe view is a `memory.view` and no output; aliases have a _ViewSpec."""
        for copy in self._analysed.copies():
            if copy.is_view and copy.joined:
                assert copy.node.target is memory.view
                is_alias = isinstance(copy.node.meta["spec"], _ViewSpec)
                assert is_alias or copy.kernel
                assert all(user.op != "output" for user in copy.node.users)
