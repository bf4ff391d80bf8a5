# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""The seams: every place where this package touches an installed ExecuTorch.

Nothing else in the repository changes upstream state. Seams that are needed together
are joined together, when the module that triggers them has been imported: all are
checked before the first is changed, and each is changed once. The switch of the
package is asked when a seam that changes stock behaviour is used.
"""

import functools
import inspect
import sys
import threading
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Callable, List, Literal, Optional, Set, Tuple

from executorch_slice import _in_tree_names
from executorch_slice._activation import (
    CUDA,
    is_enabled,
    LOWERING,
    PROFILING,
    SAVING,
    UnsupportedExecuTorchError,
    XNNPACK,
)

SUPPORTED = ((1, 5), (1, 6))  # from, up to but not including
TREE = "executorch_slice"


@dataclass(frozen=True)
class Seam:
    """One upstream attribute, and what stands in its place.

    Attributes:
        module, attribute: where upstream keeps it; a method is "Class.method".
        action: "add" a new name; "replace" at all times, where programs without
            aliases see no difference; "switch" while the package is enabled;
            "extend" a set or dict.
        counterpart: "module:attribute" in this tree.
        why: what the change is for.
        until: the upstream change that makes it obsolete.
        parameters: names that the function upstream must have, else the seam does
            not fit.
        bindings: modules that import the function by name, and need it replaced too.
        trigger: the module whose import joins the seam; it imports all others that
            the seam touches.
    """

    module: str
    attribute: str
    action: Literal["add", "replace", "switch", "extend"]
    counterpart: str
    why: str
    until: str
    parameters: Optional[Tuple[str, ...]] = None
    bindings: Tuple[str, ...] = ()
    trigger: str = LOWERING


SEAMS = (
    Seam(
        module="executorch.exir.memory",
        attribute="slice",
        action="add",
        counterpart="exir.memory:slice",
        why="target of the nodes that stand for slices of planned memory",
        until="exir/memory.py has slice",
    ),
    Seam(
        module="executorch.exir.memory",
        attribute="select",
        action="add",
        counterpart="exir.memory:select",
        why="target of the nodes that stand for selects of planned memory",
        until="exir/memory.py has select",
    ),
    Seam(
        module="executorch.exir.tensor",
        attribute="dim_order_from_stride",
        action="switch",
        counterpart="exir.tensor:dim_order_from_stride",
        why="making a spec costs a sort, and no class",
        until="dim_order_from_stride makes no class at each call",
        parameters=("stride",),
        bindings=(
            "executorch.backends.native.serialization.graph_serialize",
            "executorch.exir.emit._emitter",
            "executorch.exir.passes.replace_view_copy_with_view_pass",
            "executorch.exir.tensor_layout",
        ),
    ),
    Seam(
        module="executorch.exir.passes.replace_view_copy_with_view_pass",
        attribute="_ViewSpec",
        action="replace",
        counterpart="exir.passes.replace_view_copy_with_view_pass:_ViewSpec",
        why="a spec for a byte range of its base, not only for all of it",
        until="_ViewSpec takes a byte offset",
        parameters=("base", "shape"),
    ),
    Seam(
        module="executorch.exir.passes",
        attribute="to_out_var_skiplist",
        action="extend",
        counterpart="exir.memory:ALIAS_OPS",
        why="an alias op has no out variant",
        until="to_out_var_skiplist holds the alias ops",
    ),
    Seam(
        module="executorch.exir.passes.spec_prop_pass",
        attribute="SpecPropPass.update_placeholder_tensor_specs",
        action="replace",
        counterpart="exir.passes.spec_prop_pass:update_placeholder_tensor_specs",
        why="the last place that sees the signature tells buffers from user inputs",
        until="passes before memory planning are given the graph signature",
        parameters=("self", "exported_program", "graph_module"),
    ),
    Seam(
        module="executorch.exir.program._program",
        attribute="pre_memory_planning_passes",
        action="switch",
        counterpart="exir.program._program:pre_memory_planning_passes",
        why="puts the analysis and the alias passes where views are elided",
        until="pre_memory_planning_passes lists ReplaceSliceCopyWithSlicePass",
        parameters=("config", "name"),
    ),
    Seam(
        module="executorch.exir.program._program",
        attribute="emit_program",
        action="switch",
        counterpart="exir.program._program:emit_program",
        why="no program leaves whose memory plan is not proven right",
        until="to_executorch runs the plan verifier",
        parameters=(
            "methods",
            "emit_stacktrace",
            "prim_getters",
            "emit_mutable_buffer_names",
        ),
    ),
    Seam(
        module="executorch.exir.program._program",
        attribute="EdgeProgramManager.to_executorch",
        action="replace",
        counterpart="exir.program._program:to_executorch",
        why="a manager that has been lowered, and holds aliases, can be lowered again",
        until="to_executorch leaves its edge programs as they are",
    ),
    Seam(
        module="executorch.exir.memory_planning",
        attribute="get_node_tensor_specs",
        action="replace",
        counterpart="exir.memory_planning:get_node_tensor_specs",
        why="an alias needs the memory of its root, and none of its own",
        until="get_node_tensor_specs knows the alias ops and follows their chains",
        parameters=("node",),
        bindings=(
            "executorch.exir.banked_memory_planning",
            "executorch.exir.passes.memory_planning_pass",
            "executorch.util.activation_memory_profiler",
        ),
    ),
    Seam(
        module="executorch.exir.memory_planning",
        attribute="collect_specs_from_nodes",
        action="replace",
        counterpart="exir.memory_planning:collect_specs_from_nodes",
        why="alias ops are among those that a planned graph may hold",
        until="collect_specs_from_nodes knows the alias ops",
        parameters=(
            "nodes",
            "graph_signature",
            "ignore_graph_input",
            "ignore_graph_output",
            "ignore_mutable_buffers",
            "ignore_const",
            "ignore_out_var_node",
            "dedup",
            "do_assertion",
            "ignore_dynamic_unbound_tensor",
        ),
        bindings=(
            "executorch.backends.cadence.aot.memory_planning",
            "executorch.exir.passes.memory_planning_pass",
        ),
    ),
    Seam(
        module="executorch.exir.memory_planning",
        attribute="update_all_tensors_lifetime",
        action="switch",
        counterpart="exir.memory_planning:update_all_tensors_lifetime",
        why="readers of an in-place result keep the memory that it lies in alive",
        until="update_all_tensors_lifetime extends lifetimes through in-place results",
        parameters=("graph_module", "graph_signature"),
    ),
    Seam(
        module="executorch.exir.memory_planning",
        attribute="_does_not_overlap",
        action="switch",
        counterpart="exir.memory_planning:_does_not_overlap",
        why="planning asks each shared object once, not each tensor in it",
        until="SharedObject knows when its bytes are in use",
        parameters=("sobj", "spec"),
        bindings=("executorch.exir.banked_memory_planning",),
    ),
    Seam(
        module="executorch.exir.memory_planning",
        attribute="_find_max_overlapping_allocations_offset",
        action="switch",
        counterpart="exir.memory_planning:_find_max_overlapping_allocations_offset",
        why="planning asks each shared object once, not each tensor in it",
        until="SharedObject knows when its bytes are in use",
        parameters=("sobj", "spec"),
        bindings=("executorch.exir.banked_memory_planning",),
    ),
    Seam(
        module="executorch.exir.memory_planning",
        attribute="_handle_submodule",
        action="replace",
        counterpart="exir.memory_planning:_handle_submodule",
        why="what a branch returns is not planned among the branch's own bytes",
        until="branches of cond return in memory that the caller planned",
        parameters=(
            "algo",
            "parent_graph_module",
            "alignment",
            "submodule_node",
            "graph_signature",
            "alloc_graph_input",
        ),
    ),
    Seam(
        module="executorch.exir.memory_planning",
        attribute="apply_algo",
        action="replace",
        counterpart="exir.memory_planning:apply_algo",
        why="what a branch returns lies in the slot of its cond's result",
        until="branches of cond return in memory that the caller planned",
        parameters=(
            "algo",
            "graph_module",
            "alignment",
            "graph_signature",
            "alloc_graph_input",
            "alloc_graph_output",
            "alloc_mutable_buffers",
            "enable_non_cpu_memory_planning",
        ),
        bindings=("executorch.exir.passes.memory_planning_pass",),
    ),
    Seam(
        module="executorch.exir.emit._emitter",
        attribute="_Emitter.call_function",
        action="replace",
        counterpart="exir.emit._emitter:call_function",
        why="a planned alias needs no instruction",
        until="_Emitter.call_function emits the alias ops",
        parameters=("self", "target", "args", "kwargs"),
    ),
    Seam(
        module="executorch.exir.emit._emitter",
        attribute="_TopLevelEmitter.placeholder",
        action="replace",
        counterpart="exir.emit._emitter:placeholder",
        why="a constant of which the program holds parts is not stored, too",
        until="_TopLevelEmitter.placeholder leaves out what nothing reads",
        parameters=("self", "target", "args", "kwargs"),
    ),
    Seam(
        module="executorch.exir.serde.export_serialize",
        attribute="_KNOWN_FUNCTIONS",
        action="extend",
        counterpart="exir.memory:ALIAS_OPS",
        why="a program with aliases can be saved",
        until="_KNOWN_FUNCTIONS holds the alias ops",
        trigger=SAVING,
    ),
    Seam(
        module="executorch.exir.serde.serialize",
        attribute="_KNOWN_FUNCTIONS_MAP",
        action="extend",
        counterpart="exir.serde.serialize:KNOWN_FUNCTIONS",
        why="a program with aliases can be loaded",
        until="_KNOWN_FUNCTIONS_MAP holds the alias ops",
        trigger=SAVING,
    ),
    Seam(
        module="executorch.backends.xnnpack.partition.config.generic_node_configs",
        attribute="SliceCopyConfig.__init__",
        action="replace",
        counterpart="backends.xnnpack.partition.config.generic_node_configs:__init__",
        why="a partitioner can be told to leave strided slices to portable kernels",
        until="SliceCopyConfig has the option strided_slices",
        trigger=XNNPACK,
    ),
    Seam(
        module="executorch.backends.xnnpack.partition.config.generic_node_configs",
        attribute="SliceCopyConfig.check_constraints",
        action="switch",
        counterpart=(
            "backends.xnnpack.partition.config.generic_node_configs:check_constraints"
        ),
        why="slices of any step are delegated, and each refusal says why",
        until="SliceCopyConfig takes slices of any step",
        parameters=("self", "node", "ep"),
        trigger=XNNPACK,
    ),
    Seam(
        module="executorch.backends.xnnpack.operators.node_visitor",
        attribute="get_node_visitors",
        action="switch",
        counterpart="backends.xnnpack.operators.node_visitor:get_node_visitors",
        why="serializes slices of any step, and clamps bounds",
        until="SliceCopyVisitor serializes slices of any step",
        parameters=("args",),
        bindings=("executorch.backends.xnnpack.xnnpack_preprocess",),
        trigger=XNNPACK,
    ),
    Seam(
        module="executorch.backends.cuda.cuda_backend",
        attribute="CudaBackend.get_custom_passes",
        action="switch",
        counterpart="backends.cuda.cuda_backend:get_custom_passes",
        why="slices, selects and chunks that a method returns are contiguous",
        until="CudaBackend.get_custom_passes lists CloneReturnedViewsPass",
        parameters=("compile_specs",),
        trigger=CUDA,
    ),
    Seam(
        module="executorch.util.activation_memory_profiler",
        attribute="_validate_memory_planning_is_done",
        action="replace",
        counterpart=(
            "util.activation_memory_profiler:_validate_memory_planning_is_done"
        ),
        why="a program of delegates may hold aliases, and no allocation",
        until="_validate_memory_planning_is_done knows the alias ops",
        parameters=("exported_program",),
        trigger=PROFILING,
    ),
)

_joined: Set[str] = set()
_lock = threading.RLock()


def join(trigger: str) -> None:
    """Joins the seams of `trigger` to the installed ExecuTorch, once.

    Raises:
        UnsupportedExecuTorchError: naming what does not fit; nothing was changed.
    """
    with _lock:
        _check_version()
        _import(trigger)  # which may join its seams, where it was not imported yet
        if trigger in _joined:
            return
        seams = [seam for seam in SEAMS if seam.trigger == trigger]
        for seam in seams:
            _check(seam)
        for change in [change for seam in seams for change in _changes(seam)]:
            change()
        _in_tree_names.install()
        _joined.add(trigger)


def _import(trigger: str) -> None:
    try:
        import_module(trigger)
    except ImportError as error:
        raise UnsupportedExecuTorchError(f"{trigger} is missing: {error}") from error


def _check_version() -> None:
    try:
        installed = version("executorch")
    except PackageNotFoundError:
        raise UnsupportedExecuTorchError("executorch is not installed") from None
    release = tuple(int(part) for part in installed.split(".")[:2] if part.isdigit())
    low, high = SUPPORTED
    if not low <= release < high:
        raise UnsupportedExecuTorchError(
            f"executorch {installed} is installed; supported is "
            f">={_dotted(low)},<{_dotted(high)}"
        )


def _dotted(release: Tuple[int, ...]) -> str:
    return ".".join(map(str, release))


def _check(seam: Seam) -> None:
    """Raises unless upstream looks as `seam` expects."""
    place = f"{seam.module}.{seam.attribute}"
    try:
        owner, name = _owner(seam)
    except (ImportError, AttributeError) as error:
        raise UnsupportedExecuTorchError(f"{place} is missing: {error}") from error
    if seam.action == "add":
        return
    if not hasattr(owner, name):
        raise UnsupportedExecuTorchError(f"{place} is missing")
    if seam.parameters is not None:
        found = tuple(inspect.signature(getattr(owner, name)).parameters)
        if found != seam.parameters:
            raise UnsupportedExecuTorchError(
                f"{place} has the parameters {found}, expected {seam.parameters}"
            )


def _owner(seam: Seam) -> Tuple[Any, str]:
    """The upstream module or class that holds the attribute, and its name there."""
    owner: Any = import_module(seam.module)
    *classes, name = seam.attribute.split(".")
    for cls in classes:
        owner = getattr(owner, cls)
    return owner, name


def _changes(seam: Seam) -> List[Callable[[], None]]:
    """What to call to make the seam; all that can fail has been done before."""
    owner, name = _owner(seam)
    module, attribute = seam.counterpart.split(":")
    ours = getattr(import_module(f"{TREE}.{module}"), attribute)
    if seam.action == "extend":
        return [functools.partial(getattr(owner, name).update, ours)]
    found: Any = inspect.getattr_static(owner, name, None)
    is_class_method = isinstance(found, classmethod)
    upstream = found.__func__ if is_class_method else getattr(owner, name, None)
    if seam.action == "switch":
        ours = _switched(ours, upstream)
    if is_class_method:
        ours = classmethod(ours)
    bound = [sys.modules[m] for m in seam.bindings if m in sys.modules]
    return [functools.partial(setattr, place, name, ours) for place in [owner, *bound]]


def _switched(ours: Any, upstream: Any) -> Any:
    """Calls `ours` while the package is enabled, else `upstream`."""

    @functools.wraps(upstream)
    def switched(*args: Any, **kwargs: Any) -> Any:
        return (ours if is_enabled() else upstream)(*args, **kwargs)

    return switched
