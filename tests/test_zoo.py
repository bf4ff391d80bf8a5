# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""The hand-written zoo: how much is aliased, and that the numbers stay."""

import pytest
from alias_testing import assert_no_larger
from executorch.exir import to_edge
from executorch_slice import decisions
from executorch_slice.compare import lower, lower_stock, outputs_agree
from executorch_slice.cost import SLICE_FAMILY
from executorch_slice.exir.alias_decision import Decision, Reason
from zoo import ZOO

# Model: pieces of slice-family copies, and those that lie together in a base with an
# address, counted on stock ExecuTorch 1.5.1 without this package.
PIECES = {
    "nn_lstm": (165, 165),
    "nn_gru_time_major": (113, 113),
    "lstm_cell_loop": (80, 80),
    "lstm_cell_loop_b4": (80, 0),
    "shufflenet_v2": (10, 10),
    "shufflenet_v2_b4": (10, 0),
    "yolov8_like": (10, 10),
    "unet_center_crop": (4, 0),
    "tcn_chomp": (9, 0),
    "wavenet_gated": (27, 19),
    "densenet": (0, 0),
    "ghostnet": (3, 3),
    "espcn_pixelshuffle": (10, 0),
    "vae_encoder": (2, 2),
    "dit_adaln": (20, 8),
    "mha_qkv_unbind": (11, 10),
    "nn_transformer_encoder": (7, 7),
    "llama_handwritten_prefill_interleaved": (9, 1),
    "dyn_llama_prefill": (9, 0),
    "medusa_spec_heads": (9, 9),
    "glu_mlp_mixer": (4, 0),
    "streaming_kws_ring_buffer": (4, 0),
    "demucs_like_skip_trim": (9, 9),
    "robot_policy_gaussian": (5, 5),
    "rcnn_bbox_decode": (13, 2),
    "pointnet_xyz": (8, 6),
    "dlrm_tabular": (9, 9),
    "moe_topk_experts": (20, 0),
    "batched_experts_select": (4, 4),
    "position_tables": (12, 0),
    "ctc_beam_frame_pick": (8, 8),
}

# Parts of constants that the program holds instead.
STORED = {
    "mha_qkv_unbind": 1,
    "llama_handwritten_prefill_interleaved": 2,
    "moe_topk_experts": 8,
    "position_tables": 12,
}

# Why copies of the view family stay: their data moves, they are returned, nothing
# is known of them before the program runs, or the arena would grow.
UNAVOIDABLE = {Reason.DYNAMIC, Reason.NOT_DENSE, Reason.OUTPUT, Reason.WOULD_GROW}

# Models with slices that stay lest the arena grow.
TIGHT = {"nn_lstm", "nn_gru_time_major", "dit_adaln"}


@pytest.mark.parametrize("name", ZOO)
def test_model(name: str) -> None:
    case = ZOO[name]()
    edge = to_edge(case.export())
    stock, aliased = lower_stock(edge), lower(edge)
    found: list[Decision] = []
    others: list[Decision] = []
    for decision in decisions(aliased):
        is_slice = decision.op.split(".")[1] in SLICE_FAMILY
        (found if is_slice else others).append(decision)
    aliases = sum(d.verdict == "alias" for d in found)
    given_up = sum(d.reason is Reason.WOULD_GROW for d in found)
    assert (len(found), aliases + given_up) == PIECES[name]
    assert sum(d.verdict == "constant" for d in found) == STORED.get(name, 0)
    assert (given_up > 0) == (name in TIGHT)
    assert {d.reason for d in others if d.verdict == "copy"} <= UNAVOIDABLE
    assert outputs_agree(case.module, case.inputs, stock, aliased, runs=2)
    assert_no_larger(stock, aliased)
