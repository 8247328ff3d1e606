"""Models whose memory on a GPU was published, built as the publications describe them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Made = tuple[Any, ...]
"""Model, inputs and loss."""


@dataclass(frozen=True, slots=True)
class SmallGpt:
    """GPT-2 of 124M parameters without tied embeddings, as in ch05/10 of rasbt/LLMs-from-scratch.

    Attributes:
        batch: Sequences of 1,024 tokens.
        dtype: Of all parameters.
        fused_layers: Layer norm and GELU of torch, rather than written out.
        fused_attention: One product for queries, keys and values, and `scaled_dot_product_attention`.
        vocabulary: Number of tokens.
        compiled: Whether the model is compiled; the loss is not.
    """

    batch: int
    dtype: torch.dtype
    fused_layers: bool = False
    fused_attention: bool = False
    vocabulary: int = 50257
    compiled: bool = False

    def __call__(self) -> Made:
        """The step."""
        tokens = torch.zeros(self.batch, 1024, dtype=torch.long)
        model: Any = _Gpt(self).to(self.dtype)
        if self.compiled:
            model = torch.compile(model, backend="remat", options={"memory_budget": 1.0})
        return _Outside(model), (tokens, tokens.clone())


class _Outside(nn.Module):
    """The loss of a model's logits, which nobody holds beyond it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.model(tokens).flatten(0, 1), targets.flatten())


class _Gpt(nn.Module):
    def __init__(self, kind: SmallGpt) -> None:
        super().__init__()
        self.words = nn.Embedding(kind.vocabulary, 768)
        self.places = nn.Embedding(1024, 768)
        self.blocks = nn.ModuleList(_Block(kind) for _ in range(12))
        self.norm = _norm(kind)
        self.head = nn.Linear(768, kind.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        x = F.dropout(x, 0.1)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class _Block(nn.Module):
    def __init__(self, kind: SmallGpt) -> None:
        super().__init__()
        self.attention = _FusedAttention() if kind.fused_attention else _PlainAttention()
        gelu: nn.Module = nn.GELU(approximate="tanh") if kind.fused_layers else _PlainGelu()
        self.wide = nn.Sequential(nn.Linear(768, 3072), gelu, nn.Linear(3072, 768))
        self.before, self.between = _norm(kind), _norm(kind)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(self.attention(self.before(x)), 0.1) + x
        return F.dropout(self.wide(self.between(x)), 0.1) + x


def _norm(kind: SmallGpt) -> nn.Module:
    return nn.LayerNorm(768) if kind.fused_layers else _PlainNorm()


class _PlainNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(768)), nn.Parameter(torch.zeros(768))

    def forward(self, x: Tensor) -> Tensor:
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        return self.scale * ((x - mean) / torch.sqrt(variance + 1e-5)) + self.shift


class _PlainGelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))


class _PlainAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(768, 768, bias=False) for _ in range(3))
        self.out = nn.Linear(768, 768)
        self.register_buffer("mask", torch.triu(torch.ones(1024, 1024), diagonal=1))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            layer(x).view(*x.shape[:2], 12, 64).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(2, 3)
        scores.masked_fill_(self.mask.bool()[: x.shape[1], : x.shape[1]], -torch.inf)
        weights = F.dropout(torch.softmax(scores / 8.0, dim=-1), 0.1)
        return self.out((weights @ value).transpose(1, 2).contiguous().view(x.shape))


class _FusedAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.all, self.out = nn.Linear(768, 3 * 768, bias=False), nn.Linear(768, 768)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.all(x).view(*x.shape[:2], 3, 12, 64).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=0.1, is_causal=True)
        return self.out(mixed.transpose(1, 2).contiguous().view(x.shape))


@dataclass(frozen=True, slots=True)
class LargeVit:
    """ViT-L/16 with the structure of torchvision's ``vit_l_16``; the loss is that of classes or the sum of outputs."""

    batch: int
    dtype: torch.dtype = torch.float32
    classes: int = 1000
    summed: bool = False

    def __call__(self) -> Made:
        """The step."""
        images = torch.zeros(self.batch, 3, 224, 224, dtype=self.dtype)
        model = _Vit(self.classes).to(self.dtype)
        if self.summed:
            return model, (images,), torch.sum
        return model, (images,), entropy_against(torch.zeros(self.batch, dtype=torch.long))


def entropy_against(targets: Tensor) -> Callable[[Tensor], Tensor]:
    """Cross entropy against these classes."""
    return lambda outputs: F.cross_entropy(outputs, targets)


class _Vit(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 1024, 16, 16)
        self.first = nn.Parameter(torch.zeros(1, 1, 1024))
        self.places = nn.Parameter(torch.zeros(1, 197, 1024))
        self.blocks = nn.ModuleList(_VitBlock() for _ in range(24))
        self.norm, self.head = nn.LayerNorm(1024, eps=1e-6), nn.Linear(1024, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).permute(0, 2, 1)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], dim=1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class _VitBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(1024, eps=1e-6), nn.LayerNorm(1024, eps=1e-6)
        self.attention = nn.MultiheadAttention(1024, 16, batch_first=True)
        self.wide = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        y, _ = self.attention(y, y, y, need_weights=False)
        x = x + y
        return x + self.wide(self.between(x))
