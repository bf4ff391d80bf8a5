# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Classifiers, detectors and segmentation of images and video."""

import torch
import transformers as T
from torch import nn, Tensor

from ..case import Case
from .named import case, MEDIUM, SMALL, SPECIAL_TOKENS, tokens, WORDS

IMAGE = MEDIUM | {"image_size": 64, "patch_size": 8}


def pixels(batch: int = 1, size: int = 64) -> Tensor:
    return torch.randn(batch, 3, size, size)


def image(called: nn.Module, results: str = "logits", batch: int = 1) -> Case:
    return case(called, results, pixel_values=pixels(batch))


def swin_t() -> Case:
    """Swin-T in its full size, for tests and benchmarks of its own."""
    classifier = T.SwinForImageClassification(T.SwinConfig())
    return case(classifier, "logits", pixel_values=pixels(size=224))


def swin_of(stages: int) -> nn.Module:
    config = T.SwinConfig(
        image_size=64,
        patch_size=4,
        window_size=4,
        embed_dim=32,
        depths=[2] * stages,
        num_heads=[2, 4, 8][:stages],
    )
    return T.SwinForImageClassification(config)


def swin() -> Case:
    return image(swin_of(stages=3))


def swin_b4() -> Case:
    return image(swin_of(stages=2), batch=4)


def vit_cls() -> Case:
    return image(T.ViTForImageClassification(T.ViTConfig(**IMAGE)))


def deit_teacher() -> Case:
    return image(T.DeiTForImageClassificationWithTeacher(T.DeiTConfig(**IMAGE)))


def dinov2() -> Case:
    config = T.Dinov2Config(**IMAGE, use_swiglu_ffn=True)
    return image(T.Dinov2ForImageClassification(config))


def hiera() -> Case:
    config = T.HieraConfig(
        image_size=[64, 64],
        embed_dim=32,
        depths=[1, 1, 2, 1],
        num_heads=[1, 2, 4, 8],
        patch_size=[7, 7],
        patch_stride=[4, 4],
        patch_padding=[3, 3],
        masked_unit_size=[8, 8],
        query_stride=[2, 2],
    )
    return image(T.HieraForImageClassification(config))


def segformer() -> Case:
    config = T.SegformerConfig(
        num_encoder_blocks=4,
        depths=[1, 1, 1, 1],
        hidden_sizes=[16, 32, 64, 128],
        decoder_hidden_size=64,
        num_labels=10,
    )
    return image(T.SegformerForSemanticSegmentation(config))


def mobilevit() -> Case:
    config = T.MobileViTConfig(
        image_size=64,
        hidden_sizes=[48, 64, 80],
        neck_hidden_sizes=[8, 16, 24, 32, 48, 64, 160],
    )
    return image(T.MobileViTForImageClassification(config))


def levit() -> Case:
    config = T.LevitConfig(image_size=64, hidden_sizes=[64, 96, 128], depths=[2, 2, 2])
    return image(T.LevitForImageClassification(config))


def focalnet() -> Case:
    config = T.FocalNetConfig(
        image_size=64,
        embed_dim=32,
        hidden_sizes=[32, 64, 128],
        depths=[1, 1, 1],
        focal_levels=[2, 2, 2],
        focal_windows=[3, 3, 3],
    )
    return image(T.FocalNetForImageClassification(config))


BACKBONE = {
    "embedding_size": 16,
    "hidden_sizes": [16, 32, 64, 128],
    "depths": [1, 1, 1, 1],
    "layer_type": "basic",
}
OWN_BACKBONE = {
    "backbone": None,
    "use_timm_backbone": False,
    "use_pretrained_backbone": False,
}


def detr() -> Case:
    config = T.DetrConfig(
        **OWN_BACKBONE,
        backbone_config=T.ResNetConfig(**BACKBONE, out_features=["stage4"]),
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        num_queries=20,
        num_labels=10,
    )
    return case(
        T.DetrForObjectDetection(config),
        "logits pred_boxes",
        pixel_values=pixels(),
        pixel_mask=torch.ones(1, 64, 64, dtype=torch.long),
    )


def rtdetr() -> Case:
    stages = ["stage2", "stage3", "stage4"]
    config = T.RTDetrConfig(
        **OWN_BACKBONE,
        backbone_config=T.RTDetrResNetConfig(**BACKBONE, out_features=stages),
        anchor_image_size=[64, 64],
        eval_size=None,
        d_model=32,
        num_queries=20,
        num_labels=10,
        encoder_in_channels=[32, 64, 128],
        feat_strides=[8, 16, 32],
        encoder_hidden_dim=32,
        encoder_layers=1,
        encoder_ffn_dim=64,
        encoder_attention_heads=2,
        decoder_in_channels=[32, 32, 32],
        decoder_layers=2,
        decoder_ffn_dim=64,
        decoder_attention_heads=4,
        hidden_expansion=0.5,
    )
    return image(T.RTDetrForObjectDetection(config), "logits pred_boxes")


def timesformer() -> Case:
    config = T.TimesformerConfig(**SMALL, image_size=32, patch_size=8, num_frames=4)
    video = torch.randn(1, 4, 3, 32, 32)
    classifier = T.TimesformerForVideoClassification(config)
    return case(classifier, "logits", pixel_values=video)


def clip() -> Case:
    words = {"vocab_size": WORDS, "max_position_embeddings": 32}
    config = T.CLIPConfig(
        text_config=SMALL | words | SPECIAL_TOKENS,
        vision_config=SMALL | {"image_size": 64, "patch_size": 16},
        projection_dim=64,
    )
    return case(
        T.CLIPModel(config),
        "logits_per_image logits_per_text",
        input_ids=tokens(batch=2, length=16),
        pixel_values=pixels(),
    )


MODELS = (
    swin,
    swin_b4,
    vit_cls,
    deit_teacher,
    dinov2,
    hiera,
    segformer,
    mobilevit,
    levit,
    focalnet,
    detr,
    rtdetr,
    timesformer,
    clip,
)
