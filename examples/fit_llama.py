"""Llama 3 of 8 billion parameters at 8,192 tokens, in bfloat16: what each budget costs on a card that is not there.

remat pareto examples/fit_llama.py:make --device h100 --batch 1 --optimizer none --svg curve.svg
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

LENGTH = 8192
CONFIG = LlamaConfig(
    vocab_size=128_256,
    hidden_size=4096,
    intermediate_size=14_336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    max_position_embeddings=LENGTH,
    rope_theta=500_000.0,
    use_cache=False,
)


class LanguageModel(nn.Module):
    """Llama that returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.llama = LlamaForCausalLM(CONFIG)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean loss of the next tokens; both arguments are of shape (batch, length)."""
        logits = self.llama(tokens).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def make(batch: int) -> tuple[Any, ...]:
    """The model and the inputs of one step."""
    tokens = torch.zeros(batch, LENGTH, dtype=torch.long)
    return LanguageModel().to(torch.bfloat16), (tokens, tokens.clone())
