"""The language model of karpathy/autoresearch as its train.py has it: eight layers, and embeddings that join values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Made = tuple[Any, ...]
"""Model and inputs."""
_WIDTH, _HEADS, _HEAD, _LAYERS, _VOCABULARY, _LENGTH = 512, 4, 128, 8, 8192, 2048


@dataclass(frozen=True, slots=True)
class Autoresearch:
    """The step of one micro-batch: so many sequences of 2,048 tokens; the model and its loss are compiled as one.

    Its attention is that of torch, not FlashAttention 3 with windows; both keep queries, keys, values and the result.
    """

    batch: int

    def __call__(self) -> Made:
        """The step."""
        tokens = torch.zeros(self.batch, _LENGTH, dtype=torch.long)
        model: Any = torch.compile(_Model(), backend="remat", options={"memory_budget": 1.0}, dynamic=False)
        return model, (tokens, tokens.clone())


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(_VOCABULARY, _WIDTH, dtype=torch.bfloat16)
        self.blocks = nn.ModuleList(_Block(i % 2 == 1) for i in range(_LAYERS))
        self.head = nn.Linear(_WIDTH, _VOCABULARY, bias=False)
        self.kept, self.first = nn.Parameter(torch.ones(_LAYERS)), nn.Parameter(torch.zeros(_LAYERS))
        places = torch.zeros(1, 10 * _LENGTH, 1, _HEAD // 2, dtype=torch.bfloat16)
        self.register_buffer("cosines", places)
        self.register_buffer("sines", places.clone())

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        turns = self.cosines[:, : tokens.shape[1]], self.sines[:, : tokens.shape[1]]
        x = first = _normed(self.words(tokens))
        for i, block in enumerate(self.blocks):
            x = block(self.kept[i] * x + self.first[i] * first, tokens, turns)
        logits = self.head(_normed(x)).float()
        logits = 15 * torch.tanh(logits / 15)
        return F.cross_entropy(logits.view(-1, _VOCABULARY), targets.view(-1), ignore_index=-1)


class _Block(nn.Module):
    def __init__(self, has_values: bool) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(4))
        self.wide, self.narrow = nn.Linear(_WIDTH, 4 * _WIDTH, bias=False), nn.Linear(4 * _WIDTH, _WIDTH, bias=False)
        self.values = nn.Embedding(_VOCABULARY, _WIDTH, dtype=torch.bfloat16) if has_values else None
        self.gate = nn.Linear(32, _HEADS, bias=False) if has_values else None

    def forward(self, x: Tensor, tokens: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self._mixed(_normed(x), tokens, turns)
        return x + self.narrow(F.relu(self.wide(_normed(x))).square())

    def _mixed(self, x: Tensor, tokens: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        query, key, value = (layer(x).view(*x.shape[:2], _HEADS, _HEAD) for layer in (self.query, self.key, self.value))
        if self.values is not None and self.gate is not None:
            gate = 2 * torch.sigmoid(self.gate(x[..., :32]))
            value = value + gate[..., None] * self.values(tokens).view(value.shape)
        query, key = _normed(_turned(query, turns)), _normed(_turned(key, turns))
        parts = (part.transpose(1, 2) for part in (query, key, value))
        mixed = F.scaled_dot_product_attention(*parts, is_causal=True)
        return self.out(mixed.transpose(1, 2).contiguous().view(x.shape))


def _normed(x: Tensor) -> Tensor:
    """In the type of `x`: autocast has this in float32 since torch 2.12 (pytorch#174824), and theirs is 2.9.1."""
    with torch.autocast("cuda", enabled=False):
        return F.rms_norm(x, (x.shape[-1],))


def _turned(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    cosines, sines = turns
    first, second = x.chunk(2, dim=3)
    return torch.cat((first * cosines + second * sines, second * cosines - first * sines), dim=3)
