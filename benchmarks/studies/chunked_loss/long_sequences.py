"""Llamas with a frozen base and trained products of small matrices beside it, on cards that are not there.

    python -m studies.chunked_loss.long_sequences 8b@4090 --lengths 8192,32768 [--layers 4] [--budget min] \
        [--chunks never,auto]

Weights are bfloat16; a step is one sequence.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import remat_compiler
from remat_compiler.units import format_bytes
from zoo.llamas import SIZES

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


def maker(size: str, layers: int | None) -> Callable[[], nn.Module]:
    """What makes the model; with fewer layers than it has, if they are given."""
    return lambda: Llama(SIZES[size] | ({} if layers is None else {"num_hidden_layers": layers})).to(torch.bfloat16)


def row(asked: str, length: int, chunks: str, given: argparse.Namespace) -> str:
    """The line of one model on one card at one length."""
    size, card = asked.split("@")

    def inputs(batch: int) -> dict[str, Tensor]:
        return {name: torch.zeros(batch, length, dtype=torch.long) for name in ("tokens", "targets")}

    start = time.monotonic()
    report = remat_compiler.fit(
        maker(size, given.layers),
        inputs,
        device=card,
        budget=given.budget,
        batches=[1],
        options={"max_slowdown": None, "chunks": chunks, "offload_budget": given.offload},
    )
    (point,) = report.points
    head = f"| {size} | {card} | {length:,} | {chunks} |"
    took = f"{time.monotonic() - start:.0f} s"
    if point.problem:
        return f"{head} refused: {' '.join(point.problem.split())[:200]} | {took} |"
    added = f"{point.added_ns / 1e6:,.0f} of {point.step_ns / 1e6:,.0f} ms"
    sizes = " | ".join(map(format_bytes, (point.step_bytes, point.peak_bytes, point.reserved_bytes)))
    fits = "yes" if report.fits(point) else "no"
    return f"{head} {sizes} | {fits} | {added} | {took} | {'; '.join(map(str, point.chunked))} |"


def main() -> None:
    """Print a line for each model and length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="SIZE@CARD, such as 8b@h100")
    parser.add_argument("--lengths", default="8192")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--budget", default="min")
    parser.add_argument("--chunks", default="never,auto")
    parser.add_argument("--offload", default=0, help="bytes that may lie in the host's memory, such as 100GiB")
    given = parser.parse_args()
    print("| model | card | length | chunks | step | allocated | reserved | fits | added | answered in | in chunks |")
    print("|---|---|--:|---|--:|--:|--:|---|---|--:|---|")
    for asked in given.models:
        for length in map(int, given.lengths.split(",")):
            for chunks in given.chunks.split(","):
                print(row(asked, length, chunks, given), flush=True)


if __name__ == "__main__":
    main()
