# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Encoders and decoders of text, language models and steps of their decoding."""

import torch
import transformers as T
from torch import nn, Tensor
from transformers.integrations.executorch import TorchExportableModuleWithStaticCache

from ..case import Case
from .named import case, MEDIUM, SPECIAL_TOKENS, tokens, WORDS

TEXT = MEDIUM | {"vocab_size": WORDS}
DECODER = (
    TEXT
    | SPECIAL_TOKENS
    | {
        "intermediate_size": 384,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
    }
)
CACHE = 64  # tokens


def text(called: nn.Module, results: str, batch: int = 1) -> Case:
    ids = tokens(batch)
    return case(called, results, input_ids=ids, attention_mask=torch.ones_like(ids))


def prefill(called: nn.Module, batch: int = 1) -> Case:
    options = {"use_cache": False, "logits_to_keep": 1}
    return case(called, "logits", input_ids=tokens(batch), **options)


def bert() -> Case:
    return text(T.BertModel(T.BertConfig(**TEXT)), "last_hidden_state pooler_output")


def bert_cls_b4() -> Case:
    classifier = T.BertForSequenceClassification(T.BertConfig(**TEXT))
    return text(classifier, "logits", batch=4)


def distilbert_qa() -> Case:
    config = T.DistilBertConfig(
        vocab_size=WORDS, dim=128, hidden_dim=512, n_heads=4, n_layers=2
    )
    return text(T.DistilBertForQuestionAnswering(config), "start_logits end_logits")


def mobilebert() -> Case:
    config = T.MobileBertConfig(vocab_size=WORDS, num_hidden_layers=2)
    return text(T.MobileBertForSequenceClassification(config), "logits")


def deberta_v2() -> Case:
    config = T.DebertaV2Config(
        **TEXT,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=32,
        max_relative_positions=64,
        type_vocab_size=0,
    )
    return text(T.DebertaV2Model(config), "last_hidden_state")


def modernbert() -> Case:
    special = {"pad_token_id": 0, "cls_token_id": 3, "sep_token_id": 4}
    sizes = TEXT | {"intermediate_size": 256, "num_hidden_layers": 3}
    config = T.ModernBertConfig(**sizes, **special, bos_token_id=2, eos_token_id=1)
    return text(T.ModernBertModel(config), "last_hidden_state")


def t5() -> Case:
    config = T.T5Config(
        vocab_size=WORDS,
        d_model=128,
        d_kv=32,
        d_ff=256,
        num_layers=2,
        num_heads=4,
        feed_forward_proj="gated-gelu",
    )
    return case(
        T.T5Model(config),
        "last_hidden_state",
        input_ids=tokens(length=24),
        decoder_input_ids=tokens(length=8),
        use_cache=False,
    )


def gpt2() -> Case:
    config = T.GPT2Config(
        vocab_size=WORDS, n_embd=128, n_layer=2, n_head=4, n_positions=128
    )
    return prefill(T.GPT2LMHeadModel(config))


def llama_prefill() -> Case:
    return prefill(T.LlamaForCausalLM(T.LlamaConfig(**DECODER)))


def llama_prefill_b4() -> Case:
    return prefill(T.LlamaForCausalLM(T.LlamaConfig(**DECODER)), batch=4)


def gemma3_prefill() -> Case:
    layers = ["sliding_attention", "full_attention"]
    config = T.Gemma3TextConfig(
        **DECODER, head_dim=32, sliding_window=16, layer_types=layers
    )
    return prefill(T.Gemma3ForCausalLM(config))


def phi3_prefill() -> Case:
    return prefill(T.Phi3ForCausalLM(T.Phi3Config(**DECODER)))


def gptneox_prefill() -> Case:
    sizes = TEXT | {"intermediate_size": 384, "max_position_embeddings": 128}
    return prefill(T.GPTNeoXForCausalLM(T.GPTNeoXConfig(**sizes)))


def bloom_prefill() -> Case:
    config = T.BloomConfig(vocab_size=WORDS, hidden_size=128, n_layer=2, n_head=4)
    return prefill(T.BloomForCausalLM(config))


def falcon_prefill() -> Case:
    config = T.FalconConfig(
        vocab_size=WORDS,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_kv_heads=2,
        new_decoder_architecture=True,
    )
    return prefill(T.FalconForCausalLM(config))


def mamba() -> Case:
    config = T.MambaConfig(
        vocab_size=WORDS,
        hidden_size=64,
        state_size=8,
        num_hidden_layers=2,
        use_mambapy=False,
    )
    ids = tokens(length=16)
    return case(T.MambaForCausalLM(config), "logits", input_ids=ids, use_cache=False)


class DecodeStep(nn.Module):
    """One token of a language model whose keys and values are mutable buffers."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        cache = {"batch_size": 1, "max_cache_len": CACHE}
        decoder.generation_config = T.GenerationConfig(
            use_cache=True,
            cache_implementation="static",
            max_length=CACHE,
            cache_config=cache,
        )
        self.step = TorchExportableModuleWithStaticCache(decoder, device="cpu", **cache)

    def forward(self, input_ids: Tensor, cache_position: Tensor) -> Tensor:
        logits: Tensor = self.step(input_ids=input_ids, cache_position=cache_position)
        return logits


def decode(decoder: nn.Module) -> Case:
    inputs = tokens(length=1), torch.tensor([3])
    return Case(DecodeStep(decoder.eval()), inputs, strict=True)


def llama_static_cache_decode() -> Case:
    config = T.LlamaConfig(**DECODER, attn_implementation="sdpa")
    return decode(T.LlamaForCausalLM(config))


def qwen3_static_cache_decode() -> Case:
    config = T.Qwen3Config(**DECODER, head_dim=32, attn_implementation="sdpa")
    return decode(T.Qwen3ForCausalLM(config))


MODELS = (
    bert,
    bert_cls_b4,
    distilbert_qa,
    mobilebert,
    deberta_v2,
    modernbert,
    t5,
    gpt2,
    llama_prefill,
    llama_prefill_b4,
    gemma3_prefill,
    phi3_prefill,
    gptneox_prefill,
    bloom_prefill,
    falcon_prefill,
    mamba,
    llama_static_cache_decode,
    qwen3_static_cache_decode,
)
