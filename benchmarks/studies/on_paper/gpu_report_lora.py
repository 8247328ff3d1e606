"""LoRA of rank 8 on queries and values as litgpt trained it in October 2023, in bfloat16, with the loss in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Made = tuple[Any, ...]
"""Model, inputs and loss."""
_RANK, _CHUNK = 8, 128


@dataclass(frozen=True, slots=True)
class Sizes:
    """A language model's sizes.

    Attributes:
        layers: Its blocks.
        width: Of its tokens.
        heads: Of attention.
        wide: Width between the two products of a block, or three, if it is `gated`.
        vocabulary: Tokens that it knows, as they are padded.
        turned: Part of each head that is turned by its place.
        gated: Whether it is a Llama: RMS norms, gates, one branch after the other, and no bias.
        one_norm: Whether both branches of a block have the same norm.
        head_bias: Whether the last layer has a bias.
    """

    layers: int
    width: int
    heads: int
    wide: int
    vocabulary: int
    turned: float = 1.0
    gated: bool = False
    one_norm: bool = False
    head_bias: bool = False


@dataclass(frozen=True, slots=True)
class Lora:
    """The step of one micro-batch: so many sequences of `length` tokens."""

    sizes: Sizes
    batch: int
    length: int

    def __call__(self) -> Made:
        """The step."""
        tokens = torch.zeros(self.batch, self.length, dtype=torch.long)
        model = _Model(self.sizes, self.length).to(torch.bfloat16)
        for name, parameter in model.named_parameters():
            parameter.requires_grad = "adapted" in name
        return model, (tokens,), _LossOf(tokens.clone())


def trained(parameters: Any) -> torch.optim.Optimizer:
    """AdamW of what is trained."""
    return torch.optim.AdamW([parameter for parameter in parameters if parameter.requires_grad])


class _LossOf:
    """Cross entropy of logits in chunks against the tokens that come next."""

    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens

    def __call__(self, logits: Sequence[Tensor]) -> Tensor:
        parts = [*logits[:-1], logits[-1][:, :-1]]
        targets = self.tokens[:, 1:].split(_CHUNK, dim=1)
        losses = [
            F.cross_entropy(part.reshape(-1, part.shape[-1]), target.reshape(-1), ignore_index=-1, reduction="none")
            for part, target in zip(parts, targets, strict=True)
        ]
        return torch.cat(losses).mean() / 128


class _Model(nn.Module):
    def __init__(self, sizes: Sizes, length: int) -> None:
        super().__init__()
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=sizes.head_bias)
        self.words = nn.Embedding(sizes.vocabulary, sizes.width)
        self.blocks = nn.ModuleList(_Block(sizes) for _ in range(sizes.layers))
        self.norm = _norm(sizes)
        part = int(sizes.turned * sizes.width / sizes.heads)
        self.register_buffer("cosines", torch.zeros(length, part))
        self.register_buffer("sines", torch.zeros(length, part))

    def forward(self, tokens: Tensor) -> list[Tensor]:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x, self.cosines, self.sines)
        # Fabric hands what a model in bfloat16 returns on in float32.
        return [self.head(part).float() for part in self.norm(x).split(_CHUNK, dim=1)]


class _Block(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.before = _norm(sizes)
        self.all, self.out = _Adapted(sizes), nn.Linear(sizes.width, sizes.width, bias=not sizes.gated)
        self.between = self.before if sizes.one_norm else _norm(sizes)
        self.wide = nn.Linear(sizes.width, sizes.wide, bias=not sizes.gated)
        self.gate = nn.Linear(sizes.width, sizes.wide, bias=False) if sizes.gated else None
        self.narrow = nn.Linear(sizes.wide, sizes.width, bias=not sizes.gated)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        y = self.before(x)
        mixed = self._mixed(y, cosines, sines)
        if self.gate is None:
            y = y if self.sizes.one_norm else self.between(x)
            return self.narrow(F.gelu(self.wide(y), approximate="tanh")) + mixed + x
        x = mixed + x
        y = self.between(x)
        return self.narrow(F.silu(self.gate(y)) * self.wide(y)) + x

    def _mixed(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.sizes.heads
        parts = self.all(x).view(batch, length, heads, 3, -1).permute(0, 2, 3, 1, 4).split((1, 1, 1), dim=2)
        query, key, value = (part.reshape(batch, heads, length, -1) for part in parts)
        query, key = _turned(query, cosines, sines), _turned(key, cosines, sines)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class _Adapted(nn.Module):
    """Queries, keys and values at once; two of them with what is trained beside it."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.width
        self.linear = nn.Linear(width, 3 * width, bias=not sizes.gated)
        self.adapted_in = nn.Parameter(torch.zeros(2 * _RANK, width))
        self.adapted_out = nn.Parameter(torch.zeros(2 * width, _RANK))

    def forward(self, x: Tensor) -> Tensor:
        width = x.shape[-1]
        low = F.linear(F.dropout(x, 0.05), self.adapted_in).transpose(-2, -1)
        high = F.conv1d(low, self.adapted_out[:, :, None], groups=2).transpose(-2, -1).transpose(0, 1)
        zeros = high.new_zeros((*high.shape[:-1], 3 * width)).view(-1, 3 * width)
        places = torch.arange(2 * width, device=x.device)
        filled = zeros.index_copy(1, places, high.reshape(-1, 2 * width))
        added = filled.view(*high.shape[:-1], 3 * width).transpose(0, 1) * 2.0
        return self.linear(x) + added


def _norm(sizes: Sizes) -> nn.Module:
    return _RmsNorm(sizes.width) if sizes.gated else nn.LayerNorm(sizes.width)


class _RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        return (self.weight * (y * torch.rsqrt(torch.mean(y * y, dim=-1, keepdim=True) + 1e-5))).to(x.dtype)


def _turned(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    part = cosines.shape[-1]
    turned, rest = x[..., :part], x[..., part:]
    first, second = turned.chunk(2, dim=-1)
    return torch.cat((turned * cosines + torch.cat((-second, first), dim=-1) * sines, rest), dim=-1)
