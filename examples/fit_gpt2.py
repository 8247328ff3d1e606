"""GPT-2 for `remat fit`: how large a batch fits a card, before there is one.

remat fit examples/fit_gpt2.py:make --device 4090 --budget 4GiB --batch 8,16 --autocast bf16
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

LENGTH = 1024


class LanguageModel(nn.Module):
    """GPT-2 that returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.gpt2 = GPT2LMHeadModel(GPT2Config(use_cache=False))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean loss of the next tokens; both arguments are of shape (batch, length)."""
        logits = self.gpt2(tokens).logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make(batch: int) -> tuple[Any, ...]:
    """The model and the inputs of one step."""
    tokens = torch.zeros(batch, LENGTH, dtype=torch.long)
    return LanguageModel(), (tokens, tokens.clone())
