"""Small models whose steps are run on paper, with what makes planning hard: dropout, statistics, attention, casts."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

WORDS, WIDTH, LENGTH = 512, 64, 128


class Block(nn.Module):
    """Attention and a feed-forward, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        parts = self.qkv(self.norms[0](x)).view(batch, length, 3, 2, WIDTH // 2).permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(*parts.unbind(0), dropout_p=0.1, is_causal=True)
        x = x + F.dropout(self.out(heads.transpose(1, 2).reshape(x.shape)), 0.1)
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Language(nn.Module):
    """A small language model that returns its loss."""

    def __init__(self, words: int = WORDS, blocks: int = 1) -> None:
        super().__init__()
        self.words = nn.Embedding(words, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(WIDTH, words, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


class UncutBlocks(nn.Module):
    """Its values of 11.5 MiB take segments of 12 MiB, of which the allocator doesn't cut off the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).sin().cos().sum()


class Vision(nn.Module):
    """Convolutions with batch norm, which returns logits."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [(3, 16), (16, 32), (32, 32)]
        layers = [(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU()) for a, b in sizes]
        self.body = nn.Sequential(*(part for layer in layers for part in layer))
        self.head = nn.Linear(32, 10)

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(image).mean((2, 3)))
        return logits


class Broken(Language):
    """Two graphs, for the first is ended by a print."""

    def __init__(self) -> None:
        super().__init__(blocks=2)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.blocks[0](self.words(tokens))
        torch._dynamo.graph_break()
        for block in self.blocks[1:]:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


class Untrained(nn.Module):
    """A graph without gradients in front of one that has them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.Tanh())))

    def forward(self, x: Tensor) -> Tensor:
        x = x.sin() * 2
        torch._dynamo.graph_break()
        loss: Tensor = self.layers(x).sum()
        return loss


class Checkpointed(Language):
    """The same with checkpoints, whose dropout is drawn again from where the generator was."""

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


class Halves(nn.Module):
    """Two graphs that change a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("scale", torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        torch._dynamo.graph_break()
        self.scale.mul_(0.9).add_(x.detach().mean())
        return (self.scale * self.second(x).tanh()).square().mean()


class Defaulted(nn.Module):
    """The same, compiled while the GPU is the default device."""

    def __init__(self) -> None:
        super().__init__()
        self.halves = Halves()

    def forward(self, x: Tensor) -> Tensor:
        with torch.device("cuda"):
            loss: Tensor = self.halves(x)
            return loss


class _Float8Product(torch.autograd.Function):
    """A product of operands in eight bits, as libraries of such training emit it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return scaled(x, weight.t())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return scaled(gradients[0], column_major(weight)), scaled(gradients[0].t().contiguous(), column_major(x))


def scaled(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b``, of which the first has its rows, and the second its columns, one after the other."""
    one = torch.ones((), device=a.device)
    eight = torch.float8_e4m3fn
    return torch._scaled_mm(a.to(eight), b.to(eight), one, one, out_dtype=torch.bfloat16)


def column_major(matrix: Tensor) -> Tensor:
    return matrix.t().contiguous().t()


class Float8(nn.Module):
    """Layers whose products have operands in eight bits."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(128, 128, dtype=torch.bfloat16)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = x + F.gelu(_Float8Product.apply(x, weight))  # type: ignore[no-untyped-call]
        return x.float().square().mean()


class Flexible(nn.Module):
    """Attention whose scores the program changes."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).view(len(x), LENGTH, 3, 1, WIDTH).permute(2, 0, 3, 1, 4).unbind(0)
        heads: Tensor = flex_attention(query, key, value, score_mod=lambda score, b, h, q, k: score + (q - k))  # type: ignore[assignment]
        return F.gelu(heads).square().mean()


class Mixed(nn.Module):
    """A table on the CPU, whose rows are brought to the GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, device="cpu")
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens).to("cuda")
        return self.layer(x).tanh().square().mean()


def float8(batch: int) -> tuple[Any, ...]:
    """Layers in eight bits."""
    return Float8(), torch.zeros(16 * batch, 128, dtype=torch.bfloat16)


def flexible(batch: int) -> tuple[Any, ...]:
    """Attention whose scores the program changes."""
    return Flexible(), torch.zeros(batch, LENGTH, WIDTH)


def mixed(batch: int) -> tuple[Any, ...]:
    """A step of which a part is on the CPU."""
    return Mixed(), torch.zeros(batch * LENGTH, dtype=torch.long, device="cpu")


def language(batch: int) -> tuple[Any, ...]:
    """The language model and its inputs."""
    tokens = torch.zeros(batch, LENGTH, dtype=torch.long)
    return Language(), {"tokens": tokens, "targets": tokens.clone()}


def deeper(batch: int) -> tuple[Any, ...]:
    """The same with two blocks, of which more can be computed again."""
    return Language(blocks=2), language(batch)[1]


def wordy(batch: int) -> tuple[Any, ...]:
    """A model whose logits are the most of its memory, as those of real vocabularies, whose sizes are odd numbers."""
    return Language(words=8209).to("cuda", torch.bfloat16), language(batch)[1]


def broken(batch: int) -> tuple[Any, ...]:
    """The same in two graphs."""
    return Broken(), language(batch)[1]


def untrained() -> tuple[Any, ...]:
    """A step whose first graph has no gradients."""
    return Untrained(), torch.zeros(10_000, 64)


def checkpointed(batch: int) -> tuple[Any, ...]:
    """The same with checkpoints."""
    return Checkpointed(), language(batch)[1]


def defaulted(batch: int) -> tuple[Any, ...]:
    """A model that makes the GPU the default device while it runs."""
    return Defaulted(), torch.zeros(batch, WIDTH)


def vision(batch: int) -> tuple[Any, ...]:
    """The vision model, its input and its loss."""
    return Vision(), torch.zeros(batch, 3, 32, 32), lambda logits: logits.logsumexp(1).mean()


MAKERS = {
    "language": language,
    "vision": vision,
    "broken": broken,
    "wordy": wordy,
    "defaulted": defaulted,
    "checkpointed": checkpointed,
    "float8": float8,
    "flexible": flexible,
    "mixed": mixed,
}


class Wide(nn.Module):
    """Layers whose results take long to make and are quickly moved."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + F.gelu(layer(x))
        return x.square().mean()


def wide_inputs() -> Tensor:
    """Inputs of `Wide`."""
    return torch.randn(8192, 1024)
