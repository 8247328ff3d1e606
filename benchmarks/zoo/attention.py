"""Attention networks of the zoo: small configurations of the models of `transformers`, with random weights.

Each builder returns the training module and its inputs, on the CPU in float32; randomness is the caller's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

from zoo.loss import TokenLoss

Built = tuple[nn.Module, dict[str, Tensor]]

VOCABULARY = 2000


def gpt2(
    *, layers: int, hidden: int, heads: int, vocabulary: int, batch: int, length: int, dropout: float, attention: str
) -> Built:
    """GPT-2 with a tied embedding; `attention` is ``sdpa`` (fused) or ``eager`` (the matrix is materialised)."""
    config = GPT2Config(
        vocab_size=vocabulary,
        n_embd=hidden,
        n_layer=layers,
        n_head=heads,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    tokens = torch.randint(vocabulary, (batch, length))
    network = GPT2LMHeadModel(config)
    network.set_attn_implementation(attention)
    return TokenLoss(network), {"input_ids": tokens, "labels": tokens.clone()}


def bert(*, layers: int, hidden: int, heads: int, vocabulary: int, batch: int, length: int, dropout: float) -> Built:
    """BERT under the masked-language-model head."""
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    tokens = torch.randint(vocabulary, (batch, length))
    return TokenLoss(BertForMaskedLM(config)), {"input_ids": tokens, "labels": tokens.clone()}


def t5(*, layers: int, hidden: int, heads: int, vocabulary: int, batch: int, length: int, dropout: float) -> Built:
    """T5 with `layers` encoder and as many decoder layers, and a tied embedding."""
    config = T5Config(
        vocab_size=vocabulary,
        d_model=hidden,
        d_kv=hidden // heads,
        d_ff=4 * hidden,
        num_layers=layers,
        num_decoder_layers=layers,
        num_heads=heads,
        dropout_rate=dropout,
        pad_token_id=0,
        use_cache=False,
    )
    tokens = torch.randint(vocabulary, (batch, length))
    inputs = {"input_ids": tokens, "decoder_input_ids": tokens.clone(), "labels": tokens.clone()}
    return TokenLoss(T5ForConditionalGeneration(config)), inputs


def llama(*, layers: int, hidden: int, heads: int, vocabulary: int, batch: int, length: int, dropout: float) -> Built:
    """Llama: rotary positions, gated perceptron, two query heads a key head.  Only its attention has dropout."""
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=8 * hidden // 3,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        max_position_embeddings=length,
        attention_dropout=dropout,
        use_cache=False,
    )
    tokens = torch.randint(vocabulary, (batch, length))
    return TokenLoss(LlamaForCausalLM(config)), {"input_ids": tokens, "labels": tokens.clone()}


def vit(
    *, layers: int, hidden: int, heads: int, classes: int, batch: int, pixels: int, patch: int, dropout: float
) -> Built:
    """Vision transformer over ``(pixels / patch) ** 2`` patches."""
    config = ViTConfig(
        image_size=pixels,
        patch_size=patch,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    config.num_labels = classes
    inputs = {"pixel_values": torch.randn(batch, 3, pixels, pixels), "labels": torch.randint(classes, (batch,))}
    return TokenLoss(ViTForImageClassification(config)), inputs


def build_gpt2(tiny: bool, dropout: float) -> Built:
    """GPT-2 with 6 layers and fused attention."""
    return _language_gpt2(tiny, dropout, heads=4, attention="sdpa")


def build_gpt2eagerattn(tiny: bool, dropout: float) -> Built:
    """GPT-2 with 6 layers and 8 materialised attention matrices a layer."""
    return _language_gpt2(tiny, dropout, heads=8, attention="eager")


def _language_gpt2(tiny: bool, dropout: float, heads: int, attention: str) -> Built:
    if tiny:
        return gpt2(
            layers=2, hidden=32, heads=2, vocabulary=64, batch=2, length=16, dropout=dropout, attention=attention
        )
    return gpt2(
        layers=6,
        hidden=256,
        heads=heads,
        vocabulary=VOCABULARY,
        batch=4,
        length=128,
        dropout=dropout,
        attention=attention,
    )


def build_gpt2tiny24(tiny: bool, dropout: float) -> Built:
    """A deep and very narrow GPT-2: a graph of 4,000 joint nodes that runs in no time."""
    return gpt2_of_depth(3 if tiny else 24, dropout)


def build_gpt2tiny96(tiny: bool, dropout: float) -> Built:
    """A deeper and very narrow GPT-2: a graph of 15,600 joint nodes that runs in no time."""
    return gpt2_of_depth(4 if tiny else 96, dropout)


def gpt2_of_depth(layers: int, dropout: float = 0.0) -> Built:
    """A very narrow GPT-2 for timing planners: 161 joint nodes a layer and 134 more."""
    return gpt2(
        layers=layers, hidden=32, heads=1, vocabulary=100, batch=1, length=32, dropout=dropout, attention="sdpa"
    )


def build_bert(tiny: bool, dropout: float) -> Built:
    """BERT with 6 layers."""
    if tiny:
        return bert(layers=2, hidden=32, heads=2, vocabulary=64, batch=2, length=16, dropout=dropout)
    return bert(layers=6, hidden=256, heads=4, vocabulary=VOCABULARY, batch=4, length=128, dropout=dropout)


def build_t5(tiny: bool, dropout: float) -> Built:
    """T5 with 3 encoder and 3 decoder layers."""
    if tiny:
        return t5(layers=1, hidden=32, heads=2, vocabulary=64, batch=2, length=16, dropout=dropout)
    return t5(layers=3, hidden=256, heads=4, vocabulary=VOCABULARY, batch=4, length=128, dropout=dropout)


def build_llama(tiny: bool, dropout: float) -> Built:
    """Llama with 6 layers."""
    if tiny:
        return llama(layers=2, hidden=48, heads=4, vocabulary=64, batch=2, length=16, dropout=dropout)
    return llama(layers=6, hidden=256, heads=8, vocabulary=VOCABULARY, batch=4, length=128, dropout=dropout)


def build_vit(tiny: bool, dropout: float) -> Built:
    """Vision transformer with 6 layers over 64 patches and a class token."""
    if tiny:
        return vit(layers=2, hidden=32, heads=2, classes=10, batch=2, pixels=16, patch=8, dropout=dropout)
    return vit(layers=6, hidden=256, heads=4, classes=100, batch=8, pixels=64, patch=8, dropout=dropout)
