# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Small models with random weights that slice as real ones do; torch is all they need.

`ZOO[name]()` builds a case, in eval mode, the same one each time.
"""

from .audio import (
    ctc_beam_frame_pick,
    demucs_like_skip_trim,
    streaming_kws_ring_buffer,
    tcn_chomp,
    wavenet_gated,
)
from .case import by_name, Case
from .detection import pointnet_xyz, rcnn_bbox_decode, yolov8_like
from .recurrent import lstm_cell_loop, lstm_cell_loop_b4, nn_gru_time_major, nn_lstm
from .tabular import dlrm_tabular, robot_policy_gaussian
from .transformer import (
    batched_experts_select,
    dit_adaln,
    dyn_llama_prefill,
    glu_mlp_mixer,
    llama_handwritten_prefill_interleaved,
    medusa_spec_heads,
    mha_qkv_unbind,
    moe_topk_experts,
    nn_transformer_encoder,
    position_tables,
)
from .vision import (
    densenet,
    espcn_pixelshuffle,
    ghostnet,
    shufflenet_v2,
    shufflenet_v2_b4,
    unet_center_crop,
    vae_encoder,
)

__all__ = ["Case", "ZOO"]

ZOO = by_name(
    nn_lstm,
    nn_gru_time_major,
    lstm_cell_loop,
    lstm_cell_loop_b4,
    shufflenet_v2,
    shufflenet_v2_b4,
    yolov8_like,
    unet_center_crop,
    tcn_chomp,
    wavenet_gated,
    densenet,
    ghostnet,
    espcn_pixelshuffle,
    vae_encoder,
    dit_adaln,
    mha_qkv_unbind,
    nn_transformer_encoder,
    llama_handwritten_prefill_interleaved,
    dyn_llama_prefill,
    medusa_spec_heads,
    glu_mlp_mixer,
    streaming_kws_ring_buffer,
    demucs_like_skip_trim,
    robot_policy_gaussian,
    rcnn_bbox_decode,
    pointnet_xyz,
    dlrm_tabular,
    moe_topk_experts,
    batched_experts_select,
    position_tables,
    ctc_beam_frame_pick,
)
