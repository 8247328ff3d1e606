"""nanoVLM of 222 million parameters as it was when it was measured: SigLIP-B/16 in front of SmolLM2-135M.

Sequences have 128 tokens, those of the image included.  They came before the text at first, and the loss took what is
behind them; since June 2025 they take the places of tokens that stand for them, and the loss takes all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Made = tuple[Any, ...]
"""Model and inputs."""
_WIDTH, _HEADS, _KEY_HEADS, _HEAD, _TOKENS = 576, 9, 3, 64, 128


@dataclass(frozen=True, slots=True)
class NanoVlm:
    """The step for so many images, each with its text.

    Attributes:
        batch: Images.
        side: Patches of 16 x 16 pixels in a row of an image.
        in_places: Whether the tokens of images take the places of a token of their own.
    """

    batch: int
    side: int = 16
    in_places: bool = True

    def __call__(self) -> Made:
        """The step."""
        text = _TOKENS if self.in_places else _TOKENS - _image_tokens(self.side)
        tokens = torch.zeros(self.batch, text, dtype=torch.long)
        images = torch.zeros(self.batch, 3, 16 * self.side, 16 * self.side)
        return _NanoVlm(self), (tokens, images, torch.ones_like(tokens), tokens.clone())

    @property
    def vocabulary(self) -> int:
        """Tokens that the model knows."""
        return 49153 if self.in_places else 49152

    @property
    def logits_bytes(self) -> int:
        """Logits, which their loop holds while the next step makes its own."""
        return self.batch * _TOKENS * self.vocabulary * 2


def _image_tokens(side: int) -> int:
    """Four neighbouring patches make a token."""
    return (side // 2) ** 2


class _NanoVlm(nn.Module):
    def __init__(self, kind: NanoVlm) -> None:
        super().__init__()
        self.kind = kind
        self.images, self.text = _Images(kind.side), _Text(kind.vocabulary)
        self.bridge = nn.Linear(4 * 768, _WIDTH, bias=False)

    def forward(self, tokens: Tensor, images: Tensor, mask: Tensor, targets: Tensor) -> Any:
        half, count = self.kind.side // 2, _image_tokens(self.kind.side)
        x = self.images(images)
        x = x.view(len(x), half, 2, half, 2, 768).permute(0, 1, 3, 2, 4, 5).contiguous().view(len(x), count, 4 * 768)
        image, words = self.bridge(x), self.text.words(tokens)
        if self.kind.in_places:
            x = words.clone()
            places = torch.arange(count, device=x.device)
            x[torch.arange(len(x), device=x.device)[:, None], places] = image.to(x.dtype)
        else:
            x = torch.cat([image, words], dim=1)
            mask = torch.cat([mask.new_ones(len(x), count), mask], dim=1)
        logits = self.text.head(self.text(x, mask))
        if not self.kind.in_places:
            logits = logits[:, count:]
        loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), ignore_index=-100)
        return {"logits": logits, "loss": loss}


class _Images(nn.Module):
    def __init__(self, side: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 768, 16, 16)
        self.places = nn.Parameter(torch.zeros(1, side * side, 768))
        self.blocks = nn.ModuleList(_ImageBlock() for _ in range(12))
        self.norm = nn.LayerNorm(768, eps=1e-6)

    def forward(self, images: Tensor) -> Tensor:
        x = F.dropout(self.patches(images).flatten(2).transpose(1, 2) + self.places, 0.0)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class _ImageBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(768, eps=1e-6), nn.LayerNorm(768, eps=1e-6)
        self.all, self.out = nn.Linear(768, 3 * 768), nn.Linear(768, 768)
        self.wide, self.narrow = nn.Linear(768, 3072), nn.Linear(3072, 768)

    def forward(self, x: Tensor) -> Tensor:
        x = x + F.dropout(self.out(self._mixed(self.before(x))), 0.0)
        y = F.gelu(self.wide(self.between(x)), approximate="tanh")
        return x + F.dropout(self.narrow(y), 0.0)

    def _mixed(self, x: Tensor) -> Tensor:
        parts = self.all(x).split(768, dim=2)
        query, key, value = (part.view(*x.shape[:2], 12, 64).transpose(1, 2) for part in parts)
        return F.scaled_dot_product_attention(query, key, value).transpose(1, 2).contiguous().view(x.shape)


class _Text(nn.Module):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, _WIDTH)
        self.register_buffer("frequencies", torch.zeros(_HEAD // 2))
        self.blocks = nn.ModuleList(_TextBlock() for _ in range(30))
        self.norm = _RmsNorm()
        self.head = nn.Linear(_WIDTH, vocabulary, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        with torch.no_grad():
            places = torch.arange(x.shape[1], device=x.device).expand(len(x), -1).reshape(-1).float()
            angles = (places[:, None] * self.frequencies).view(len(x), x.shape[1], -1)
            angles = torch.cat([angles, angles], dim=-1)
            turns = (angles.cos() * 1.0)[:, None], (angles.sin() * 1.0)[:, None]
        for block in self.blocks:
            x = block(x, turns, mask)
        return self.norm(x)


class _RmsNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(_WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(torch.mean(x**2, dim=-1, keepdim=True) + 1e-5) * self.weight


class _TextBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(_WIDTH, 1536, bias=False) for _ in range(2))
        self.down = nn.Linear(1536, _WIDTH, bias=False)
        self.query = nn.Linear(_WIDTH, _WIDTH, bias=False)
        self.key, self.value = (nn.Linear(_WIDTH, _KEY_HEADS * _HEAD, bias=False) for _ in range(2))
        self.out = nn.Linear(_WIDTH, _WIDTH, bias=False)
        self.before, self.between = _RmsNorm(), _RmsNorm()

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        x = x + F.dropout(self.out(self._mixed(self.before(x), turns, mask)), 0.0)
        y = self.between(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

    def _mixed(self, x: Tensor, turns: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        query, key, value = (
            layer(x).view(*x.shape[:2], -1, _HEAD).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        query, key = _turned(query, turns), _turned(key, turns)
        key, value = (part.repeat_interleave(_HEADS // _KEY_HEADS, dim=1) for part in (key, value))
        added = (1.0 - mask[:, None, None]) * torch.finfo(query.dtype).min
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=added, is_causal=True)
        return mixed.transpose(1, 2).contiguous().view(x.shape)


def _turned(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    cosines, sines = turns
    first, second = x.chunk(2, dim=-1)
    return x * cosines + torch.cat((-second, first), dim=-1) * sines
