"""Models of `transformers` and timm by the names of their architectures: random weights, tiny sizes.

Models of timm are named ``timm/resnet18``.
"""

# ruff: noqa: E501, SIM905 (lists of names)

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY = 120

TEXT = (
    "albert bert bart bigbird_pegasus biogpt blenderbot bloom camembert codegen cohere convbert ctrl data2vec-text deberta "
    "deberta-v2 distilbert electra ernie esm falcon flaubert fnet funnel gemma gemma2 gemma3_text glm gpt2 gpt_bigcode "
    "gpt_neo gpt_neox gptj granite ibert led llama longformer luke m2m_100 mamba mbart megatron-bert mistral mixtral mobilebert "
    "modernbert mpnet mpt mt5 nystromformer olmo olmo2 opt pegasus phi phi3 prophetnet qwen2 qwen3 rembert roberta "
    "roformer squeezebert stablelm starcoder2 t5 xglm xlm xlm-roberta xlnet yoso"
).split()
IMAGES = "beit bit convnext convnextv2 cvt deit dinov2 efficientnet focalnet mobilenet_v1 mobilenet_v2 mobilevit poolformer pvt regnet resnet swin swinv2 vit".split()  # fmt: skip
TIMM = (
    "resnet18 mobilenetv3_small_050 efficientnet_b0 convnext_atto vit_tiny_patch16_224 deit_tiny_patch16_224 mixer_s32_224 "
    "regnetx_002 densenet121 ghostnet_050 levit_128s poolformer_s12 swin_tiny_patch4_window7_224 xcit_nano_12_p16_224 "
    "edgenext_xx_small"
).split()

TINY: dict[str, Any] = {
    "hidden_size": 32, "d_model": 32, "n_embd": 32, "embed_dim": 32, "emb_dim": 32, "dim": 32, "embedding_size": 32,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_decoder_layers": 2, "num_attention_heads": 2, "n_head": 2, "n_heads": 2, "num_heads": 2,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "d_kv": 16,
    "intermediate_size": 64, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "d_ff": 64, "n_inner": 64, "d_inner": 64,
    "ffn_dim": 64, "dff": 64, "word_embed_proj_dim": 32, "vocab_size": VOCABULARY, "max_position_embeddings": 128,
    "n_positions": 128, "rotary_dim": 8, "num_experts": 2, "num_local_experts": 2, "image_size": 32, "patch_size": 8,
    "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2,
}  # fmt: skip
"""What a configuration is given of these, where it knows the name and has a plain number there."""


def built(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """A model of the architecture in training mode, and its inputs."""
    torch.manual_seed(0)
    if name.startswith("timm/"):
        timm = importlib.import_module("timm")
        return timm.create_model(name[5:], num_classes=4), {"x": torch.randn(2, 3, 224, 224)}
    transformers = importlib.import_module("transformers")
    defaults = transformers.AutoConfig.for_model(name)
    known = {
        key: value
        for key, value in TINY.items()
        if isinstance(getattr(defaults, key, ""), (int, type(None)))
        # What is computed of other sizes cannot be given.
        and not isinstance(getattr(type(defaults), key, None), property)
    }
    known |= {"image_size": 32} if hasattr(defaults, "image_size") else {}
    config = transformers.AutoConfig.for_model(name, **known)
    model = transformers.AutoModel.from_config(config)
    if name in IMAGES:
        size = config.image_size if isinstance(getattr(config, "image_size", None), int) else 32
        return model.train(), {"pixel_values": torch.randn(2, 3, size, size)}
    inputs = {"input_ids": torch.randint(4, VOCABULARY, (2, 32))}
    if getattr(config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = torch.randint(4, VOCABULARY, (2, 16))
    return model.train(), inputs


class WithLoss(nn.Module):
    """The model and a loss of its first output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Tensor) -> Tensor:
        """A scalar."""
        found = self.model(**inputs) if "x" not in inputs else self.model(inputs["x"])
        return (found if isinstance(found, Tensor) else found[0]).float().square().mean()
