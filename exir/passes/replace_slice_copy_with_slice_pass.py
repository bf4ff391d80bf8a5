# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""ReplaceSliceCopyWithSlicePass: copies that move nothing become aliases."""

from itertools import accumulate
from typing import Any, Optional, Tuple

from executorch.exir import memory
from executorch.exir.tensor import TensorSpec
from executorch_slice.exir import memory as alias_memory
from executorch_slice.exir.alias_copy import Copy
from executorch_slice.exir.alias_layout import family_of, named_arguments, overload_of
from executorch_slice.exir.passes.analyze_aliases_pass import (
    analysed,
    AnalyzeAliasesPass,
)
from executorch_slice.exir.passes.replace_view_copy_with_view_pass import (
    _ViewSpec,
    joined_spec,
)
from torch.fx import GraphModule
from torch.fx.passes.infra.pass_base import PassBase, PassResult


class ReplaceSliceCopyWithSlicePass(PassBase):  # type: ignore[misc]
    """Turns the copies that lie in their bases, other than views, into alias nodes.

    `slice_copy`, `narrow_copy` and pieces of a split become `memory.slice`,
    `select_copy` and pieces of an unbind `memory.select`; what has all bytes of its
    base, as clones and most squeezes have, becomes `memory.view`. A split of which
    every piece is an alias disappears. During memory planning an alias shares the
    storage of its root. One that an instruction places when the program runs, and one
    that the program holds as a constant, keep the spec they had, which is not planned.

    Run it after SpecPropPass and ReplaceViewCopyWithViewPass, before ToOutVarPass.

    Args:
        analysis: a pass that has analysed the graph; without one, this pass
            analyses the graph that it is called with.
    """

    def __init__(self, analysis: Optional[AnalyzeAliasesPass] = None) -> None:
        super().__init__()
        self.analysis = analysis

    def call(self, graph_module: GraphModule) -> PassResult:
        self._analysed = analysed(graph_module, self.analysis)
        slices = [
            copy
            for copy in self._analysed.copies()
            if (copy.joined and not copy.is_view) or copy.stored
        ]
        for copy in slices:
            _rewrite(copy)
        for source in dict.fromkeys(c.source for c in slices if c.source is not c.node):
            if not source.users:
                source.graph.erase_node(source)
        for module in self._analysed.analyses:
            module.recompile()
        return PassResult(graph_module, bool(slices))

    def requires(self, graph_module: GraphModule) -> None:
        """Memory is not planned yet: a copy that has an address keeps it."""
        for module in graph_module.modules():
            for node in module.graph.nodes if isinstance(module, GraphModule) else ():
                spec = node.meta.get("spec")
                if family_of(overload_of(node)) and isinstance(spec, TensorSpec):
                    assert spec.mem_offset is None, f"{node} is planned already"

    def ensures(self, graph_module: GraphModule) -> None:
        """Each placed alias has a _ViewSpec in its root, and `output` uses no alias."""
        apart = {c.node for c in self._analysed.copies() if c.moved or c.stored}
        for module in graph_module.modules():
            for node in module.graph.nodes if isinstance(module, GraphModule) else ():
                if alias_memory.is_alias(node):
                    spec = node.meta["spec"]
                    root = alias_memory.alias_root(node).meta["spec"]
                    if node.target is not memory.view and node not in apart:
                        assert isinstance(spec, _ViewSpec) and spec._base is root, node
                    assert all(user.op != "output" for user in node.users), node


def _rewrite(copy: Copy) -> None:
    """Points `copy.node` at its base, with an alias op that says which part."""
    node = copy.node
    if copy.is_slice:
        node.target, node.args = _alias_call(copy)
    else:
        shape = list(node.meta["spec"].shape)
        node.target, node.args = memory.view, (copy.base, shape)
    node.kwargs = {}
    if copy.joined:
        node.meta["spec"] = joined_spec(copy)


def _alias_call(copy: Copy) -> Tuple[Any, Tuple[Any, ...]]:
    """The alias op for `copy`, and its arguments."""
    base, given = copy.base, named_arguments(copy.source)
    dim = given.get("dim", 0)
    if copy.family == "slice":
        bounds = (given.get("start"), given.get("end"), given.get("step", 1))
        return alias_memory.slice, (base, dim, *bounds)
    if copy.family == "select":
        return alias_memory.select, (base, dim, given["index"])
    if copy.family == "narrow":
        start = given["start"]
        start += base.meta["spec"].shape[dim] if start < 0 else 0
        return alias_memory.slice, (base, dim, start, start + given["length"])
    index: Any = copy.node.args[1]
    if copy.family == "unbind":
        return alias_memory.select, (base, dim, index)
    sizes = [piece.shape[dim] for piece in copy.source.meta["val"]]
    ends = list(accumulate(sizes, initial=0))
    return alias_memory.slice, (base, dim, ends[index], ends[index + 1])
