# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Encoders of speech and classifiers of sound."""

import torch
import transformers as T
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from ..case import Case
from .named import case, SMALL, WORDS


def whisper_encoder() -> Case:
    config = T.WhisperConfig(
        vocab_size=WORDS,
        d_model=96,
        encoder_layers=2,
        encoder_attention_heads=4,
        encoder_ffn_dim=256,
        max_source_positions=150,
        num_mel_bins=80,
    )
    mel = torch.randn(1, 80, 300)
    return case(WhisperEncoder(config), "last_hidden_state", input_features=mel)


def wav2vec2() -> Case:
    config = T.Wav2Vec2Config(
        **SMALL,
        vocab_size=32,
        conv_dim=[32] * 7,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        apply_spec_augment=False,
    )
    samples = torch.randn(1, 8000)
    return case(T.Wav2Vec2ForCTC(config), "logits", input_values=samples)


def ast() -> Case:
    config = T.ASTConfig(**SMALL, max_length=128, num_mel_bins=64, patch_size=16)
    mel = torch.randn(1, 128, 64)
    return case(T.ASTForAudioClassification(config), "logits", input_values=mel)


def moonshine_encoder() -> Case:
    config = T.MoonshineConfig(
        vocab_size=WORDS,
        hidden_size=96,
        intermediate_size=256,
        encoder_num_hidden_layers=2,
        decoder_num_hidden_layers=2,
        encoder_num_attention_heads=4,
        decoder_num_attention_heads=4,
    )
    encoder = T.MoonshineModel(config).get_encoder()
    samples = torch.randn(1, 8000)
    return case(encoder, "last_hidden_state", input_values=samples)


MODELS = (
    whisper_encoder,
    wav2vec2,
    ast,
    moonshine_encoder,
)
