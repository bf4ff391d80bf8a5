# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Models of Hugging Face transformers; `make models-test` installs it."""

import copy

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import EdgeProgramManager, to_edge, to_edge_transform_and_lower
from executorch_slice import disabled
from executorch_slice.compare import LoadedProgram, lower, lower_stock, outputs_agree
from executorch_slice.cost import program_cost

transformers = pytest.importorskip("transformers")

from zoo.hugging_face import MODELS  # noqa: E402, needs transformers


def undelegated(edge: EdgeProgramManager) -> int:
    """Ops outside of delegates."""
    nodes = edge.exported_program().graph.nodes
    names = [str(n.target) for n in nodes if n.op == "call_function"]
    return sum(
        "getitem" not in n and "executorch_call_delegate" not in n for n in names
    )


def test_swin_t_beside_xnnpack() -> None:
    """Of the ops that stock leaves outside of the delegates, 24 are strided slices."""
    torch.manual_seed(0)
    model = transformers.SwinForImageClassification(transformers.SwinConfig()).eval()
    exported = torch.export.export(model, (torch.randn(1, 3, 224, 224),))

    def to_xnnpack() -> EdgeProgramManager:
        return to_edge_transform_and_lower(
            copy.deepcopy(exported), partitioner=[XnnpackPartitioner()]
        )

    with disabled():
        edge = to_xnnpack()
        before, stock = undelegated(edge), LoadedProgram(edge.to_executorch())
    edge = to_xnnpack()
    assert before - undelegated(edge) == 24
    aliased = edge.to_executorch()
    assert program_cost(aliased).slice_instructions == 0
    ours = LoadedProgram(aliased)
    for _ in range(2):
        image = torch.randn(1, 3, 224, 224)
        (got,), (want,) = ours(image), stock(image)
        assert torch.equal(got, want)
        torch.testing.assert_close(got, model(image).logits, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_model(name: str) -> None:
    case = MODELS[name]()
    edge = to_edge(case.export())
    stock, aliased = lower_stock(edge), lower(edge)
    assert outputs_agree(case.module, case.inputs, stock, aliased, runs=2)
    before, after = program_cost(stock), program_cost(aliased)
    assert after.instructions < before.instructions
    assert after.arena_bytes <= before.arena_bytes
    assert after.pte_bytes <= before.pte_bytes
