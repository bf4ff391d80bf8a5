# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Marks the placeholders that are mutable buffers, which are planned by other rules."""

from typing import Any

from executorch.exir.passes import spec_prop_pass as upstream
from torch.export import ExportedProgram
from torch.fx import GraphModule

_upstream_update_placeholder_tensor_specs = (
    upstream.SpecPropPass.update_placeholder_tensor_specs
)


def update_placeholder_tensor_specs(
    self: Any, exported_program: ExportedProgram, graph_module: GraphModule
) -> None:
    """Replaces the method of SpecPropPass: also sets ``meta["is_mutable_buffer"]``."""
    _upstream_update_placeholder_tensor_specs(self, exported_program, graph_module)
    signature = exported_program.graph_signature
    for node in graph_module.graph.nodes:
        if upstream._is_mutable_buffer(node, signature):
            node.meta["is_mutable_buffer"] = True
