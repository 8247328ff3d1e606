"""Models of the sizes that people train, made on the device; on a CPU, small ones of the same kinds."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from zoo.adapted_llamas import Llama
from zoo.llamas import SIZES
from zoo.loss import Classifier, TokenLoss
from zoo.vision import UNet


@dataclass(frozen=True)
class Model:
    """A training step to be.

    Attributes:
        module: The model with its loss.
        inputs: Arguments, by name.
        autocast: Type that autocast computes in; `None` for none.
        blocks: Name of the list of its blocks.
    """

    module: nn.Module
    inputs: dict[str, Tensor]
    autocast: torch.dtype | None = torch.bfloat16
    blocks: str = ""

    def checkpointed(self) -> Model:
        """The same parameters, with each block recomputed in the backward."""
        shared = {id(one): one for one in (*self.module.parameters(), *self.module.buffers())}
        module = copy.deepcopy(self.module, shared)
        for block in module.get_submodule(self.blocks):  # type: ignore[attr-defined]
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
        return Model(module, self.inputs, self.autocast, self.blocks)


def tokens(batch: int, length: int, words: int) -> dict[str, Tensor]:
    """Random tokens, as inputs and as labels."""
    return {name: torch.randint(words, (batch, length)) for name in ("input_ids", "labels")}


def gpt2(small: bool, layers: int = 4, length: int = 1024) -> Model:
    """GPT-2 of the smallest width, whose vocabulary is an odd number."""
    from transformers import GPT2Config, GPT2LMHeadModel

    more: dict[str, Any] = {"n_embd": 64, "n_head": 2, "vocab_size": 203} if small else {}
    config = GPT2Config(use_cache=False, attn_pdrop=0.0, n_layer=layers, **more)
    inputs = tokens(2, 64, config.vocab_size) if small else tokens(8, length, config.vocab_size)
    return Model(TokenLoss(GPT2LMHeadModel(config)), inputs, blocks="network.transformer.h")


def bert(small: bool) -> Model:
    """BERT-base with the head for masked words."""
    from transformers import BertConfig, BertForMaskedLM

    more: dict[str, Any] = (
        {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2, "vocab_size": 203} if small else {}
    )
    config = BertConfig(attention_probs_dropout_prob=0.0, **more)
    inputs = tokens(2, 64, config.vocab_size) if small else tokens(16, 512, config.vocab_size)
    return Model(TokenLoss(BertForMaskedLM(config)), inputs, blocks="network.bert.encoder.layer")


def llama(small: bool) -> Model:
    """Four layers of a Llama of 1.2 billion parameters, in bfloat16."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32}
    if small:
        sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    words = 200 if small else 128256
    config = LlamaConfig(
        num_hidden_layers=4, num_key_value_heads=2, vocab_size=words, tie_word_embeddings=True, use_cache=False, **sizes
    )
    inputs = tokens(2, 64, words) if small else tokens(1, 2048, words)
    return Model(TokenLoss(LlamaForCausalLM(config)).to(torch.bfloat16), inputs, None, "network.model.layers")


def large_llama(device: str, size: str, layers: int) -> Model:
    """A Llama of a published size at 8,192 tokens (Llama 2 at 4,096), made on the device; on a CPU, a small one."""
    sizes = SIZES[size] | {"num_hidden_layers": layers}
    if device == "cpu":
        small = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
        sizes |= small | {"vocab_size": 200}
    from transformers import LlamaConfig, LlamaForCausalLM

    length = 64 if device == "cpu" else 4096 if size == "13b" else 8192
    config = LlamaConfig(use_cache=False, max_position_embeddings=length, **sizes)
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            module = TokenLoss(LlamaForCausalLM(config)).train()
    finally:
        torch.set_default_dtype(before)
    inputs = {key: value.to(device) for key, value in tokens(1, length, config.vocab_size).items()}
    return Model(module, inputs, None)


def adapted(small: bool) -> Model:
    """Two layers of a Llama of 8 billion parameters with a frozen base, in bfloat16, at 16,384 tokens."""
    sizes: dict[str, Any] = {"num_hidden_layers": 2}
    if small:
        sizes |= {"hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}
        sizes |= {"vocab_size": 203}
    module = Llama(SIZES["8b"] | sizes).to(torch.bfloat16)
    made = tokens(1, 128 if small else 16_384, 203 if small else module.head.out_features)
    return Model(module, {"tokens": made["input_ids"], "targets": made["labels"]}, None)


def vit(small: bool) -> Model:
    """ViT-B/16."""
    from transformers import ViTConfig, ViTForImageClassification

    sizes: dict[str, Any] = {"image_size": 32, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    network = ViTForImageClassification(ViTConfig(**(sizes if small else {})))
    return Model(TokenLoss(network), images(small), blocks="network.vit.encoder.layer")


def resnet(small: bool) -> Model:
    """ResNet-50, images in channels-last order."""
    from transformers import ResNetConfig, ResNetForImageClassification

    inputs = images(small)
    inputs["pixel_values"] = inputs["pixel_values"].to(memory_format=torch.channels_last)
    return Model(TokenLoss(ResNetForImageClassification(ResNetConfig())), inputs)


def images(small: bool) -> dict[str, Tensor]:
    """Random images and their classes."""
    batch, pixels = (2, 32) if small else (64, 224)
    return {"pixel_values": torch.randn(batch, 3, pixels, pixels), "labels": torch.randint(2, (batch,))}


def unet(small: bool) -> Model:
    """U-Net in float32."""
    net = UNet(base=4 if small else 64, depth=2 if small else 4, classes=4, dropout=0.0)
    batch, pixels = (2, 16) if small else (16, 256)
    labels = torch.randint(4, (batch, pixels, pixels))
    return Model(Classifier(net), {"images": torch.randn(batch, 3, pixels, pixels), "labels": labels}, None)


_MODELS: dict[str, Callable[..., Model]] = {
    "gpt2": gpt2,
    "gpt2-12": functools.partial(gpt2, layers=12),
    "bert": bert,
    "llama": llama,
    "adapted": adapted,
    "vit": vit,
    "resnet": resnet,
    "unet": unet,
}


def build(name: str, device: str, **sizes: int) -> Model:
    """The model of that name, always the same."""
    torch.manual_seed(0)
    made = _MODELS[name](device == "cpu", **sizes)
    inputs = {key: value.to(device) for key, value in made.inputs.items()}
    return Model(made.module.to(device).train(), inputs, made.autocast, made.blocks)
