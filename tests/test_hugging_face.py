# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Models of Hugging Face transformers; `make models-test` installs it."""

import pytest
import torch
from alias_testing import assert_no_larger
from bench import to_edge_xnnpack
from executorch.devtools.backend_debug import get_delegation_info
from executorch.exir import EdgeProgramManager, to_edge
from executorch_slice import disabled
from executorch_slice.compare import LoadedProgram, lower, lower_stock, outputs_agree
from executorch_slice.cost import program_cost

pytest.importorskip("transformers")

from zoo.hugging_face import MODELS  # noqa: E402, needs transformers
from zoo.hugging_face.vision import pixels, swin_t  # noqa: E402, needs transformers


def undelegated(edge: EdgeProgramManager) -> int:
    """Ops outside of delegates."""
    found = get_delegation_info(edge.exported_program().graph_module)
    ops = found.delegation_by_operator.values()
    return sum(op.non_delegated for op in ops if op.op_type != "getitem")


def test_swin_t_beside_xnnpack() -> None:
    """Of the ops that stock leaves outside of the delegates, 24 are strided slices."""
    torch.manual_seed(0)
    case = swin_t()
    exported = case.export()
    with disabled():
        edge = to_edge_xnnpack(exported)
        before, stock = undelegated(edge), LoadedProgram(edge.to_executorch())
    edge = to_edge_xnnpack(exported)
    assert before - undelegated(edge) == 24
    aliased = edge.to_executorch()
    assert program_cost(aliased).slice_instructions == 0
    ours = LoadedProgram(aliased)
    for _ in range(2):
        image = pixels(size=224)
        (got,), (want,), (eager,) = ours(image), stock(image), case.module(image)
        assert torch.equal(got, want)
        torch.testing.assert_close(got, eager, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_model(name: str) -> None:
    case = MODELS[name]()
    edge = to_edge(case.export())
    stock, aliased = lower_stock(edge), lower(edge)
    assert outputs_agree(case.module, case.inputs, stock, aliased, runs=2)
    assert_no_larger(stock, aliased)
    assert program_cost(aliased).instructions < program_cost(stock).instructions
