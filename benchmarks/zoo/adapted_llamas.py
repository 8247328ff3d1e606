"""Llamas with a frozen base and trained products of small matrices beside it, whose attention is causal by itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

RANK = 16


class Adapted(nn.Module):
    """A frozen product, with a trained one of two small matrices beside it.

    Args:
        width: Of what it reads.
        made: Of what it makes.
    """

    def __init__(self, width: int, made: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, made, bias=False).requires_grad_(False)
        self.down, self.up = nn.Linear(width, RANK, bias=False), nn.Linear(RANK, made, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """What both give together."""
        return self.base(x) + 2 * self.up(self.down(x))


class Block(nn.Module):
    """A layer of a Llama whose attention is causal by itself, so that no mask of length x length is made.

    Args:
        config: Its sizes.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, hidden, self.heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
        self.groups = config.get("num_key_value_heads", self.heads)
        each = head_width(config)
        wide, narrow = each * self.heads, each * self.groups
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.query, self.out = Adapted(width, wide), Adapted(wide, width)
        self.key, self.value = Adapted(width, narrow), Adapted(width, narrow)
        self.gate, self.up, self.down = Adapted(width, hidden), Adapted(width, hidden), Adapted(hidden, width)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        """What the layer makes of activations (batch, length, width)."""
        h = self.norms[0](x)
        query, key, value = (
            one.unflatten(-1, (heads, -1)).transpose(1, 2)
            for one, heads in ((self.query(h), self.heads), (self.key(h), self.groups), (self.value(h), self.groups))
        )
        seen = functional.scaled_dot_product_attention(
            turned(query, angles), turned(key, angles), value, is_causal=True, enable_gqa=True
        )
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        h = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """Queries or keys turned by their positions' angles."""
    one, other = x.chunk(2, -1)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat((one * cos - other * sin, other * cos + one * sin), -1)


def head_width(config: dict[str, Any]) -> int:
    """Width of a head of the attention."""
    return config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])


class Llama(nn.Module):
    """A Llama with a frozen base, and its loss, of logits that are capped if its sizes say so.

    Args:
        config: Its sizes.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, words = config["hidden_size"], config["vocab_size"]
        self.each, self.cap = head_width(config), config.get("final_logit_softcapping")
        self.embedding = nn.Embedding(words, width).requires_grad_(False)
        self.layers = nn.ModuleList(Block(config) for _ in range(config["num_hidden_layers"]))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)
        self.norm.requires_grad_(False)
        self.head.requires_grad_(False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean loss; both arguments are of shape (batch, length)."""
        pairs = torch.arange(self.each // 2, device=tokens.device)
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        angles = positions[:, None] * 500_000.0 ** (-2.0 * pairs / self.each)
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, angles)
        logits = self.head(self.norm(x)).flatten(0, 1).float()
        if self.cap is not None:
            logits = self.cap * torch.tanh(logits / self.cap)
        return functional.cross_entropy(logits, targets.flatten())
