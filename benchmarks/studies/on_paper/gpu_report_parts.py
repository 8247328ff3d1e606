"""Single layers whose memory Liger's public table has, as their baselines: layers of torch and of transformers.

Gradients add up there over ten passes, and backwards keep what they used (``retain_graph=True``) but for the loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Made = tuple[Any, ...]
"""Model, inputs and loss."""


def adding(model: nn.Module) -> nn.Module:
    """The model, whose gradients add up over the steps, and are never dropped."""
    for i, parameter in enumerate([one for one in model.parameters() if one.requires_grad]):
        total = torch.zeros_like(parameter)
        model.register_buffer(f"gradient_{i}", total)
        parameter.register_post_accumulate_grad_hook(partial(_add, total))
    return model


def _add(total: Tensor, parameter: Tensor) -> None:
    assert parameter.grad is not None
    total.add_(parameter.grad)
    parameter.grad = None


@dataclass(frozen=True, slots=True)
class Kept:
    """An output whose backward keeps what it used.

    Attributes:
        output: The output.
        gradient: Its gradient; one that is drawn anew if `None`.
    """

    output: Tensor
    gradient: Tensor | None = None

    def backward(self) -> None:
        """The backward."""
        gradient = torch.randn_like(self.output) if self.gradient is None else self.gradient
        self.output.backward(gradient, retain_graph=True)


@dataclass(frozen=True, slots=True)
class Gated:
    """The wide part of a block of Llama 2 7B in bfloat16, for so many tokens; its gate is SiLU, or GELU by tanh."""

    tokens: int
    gelu: bool = False

    def __call__(self) -> Made:
        """The step."""
        return adding(_Gated(self)), (), Kept


class _Gated(nn.Module):
    def __init__(self, kind: Gated) -> None:
        super().__init__()
        self.act = partial(F.gelu, approximate="tanh") if kind.gelu else F.silu
        self.gate, self.up = (nn.Linear(4096, 11008, bias=False, dtype=torch.bfloat16) for _ in range(2))
        self.down = nn.Linear(11008, 4096, bias=False, dtype=torch.bfloat16)
        self.inputs = nn.Parameter(torch.zeros(kind.tokens, 4096, dtype=torch.bfloat16))

    def forward(self) -> Tensor:
        return self.down(self.act(self.gate(self.inputs)) * self.up(self.inputs))


@dataclass(frozen=True, slots=True)
class Head:
    """The last layer of Llama 3 8B in bfloat16 and its cross entropy, for so many tokens."""

    tokens: int

    def __call__(self) -> Made:
        """The step."""
        return adding(_Head(self.tokens)), ()


class _Head(nn.Module):
    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.head, self.other = (nn.Linear(4096, 128256, bias=False, dtype=torch.bfloat16) for _ in range(2))
        # Liger's own lies there, too, and is not used.
        self.other.requires_grad_(False)
        self.inputs = nn.Parameter(torch.zeros(tokens, 4096, dtype=torch.bfloat16))
        self.register_buffer("targets", torch.zeros(tokens, dtype=torch.long))

    def forward(self) -> Tensor:
        return F.cross_entropy(self.head(self.inputs), self.targets)


@dataclass(frozen=True, slots=True)
class Norm:
    """A layer norm of torch in float32, for 4,096 rows of `width` numbers."""

    width: int

    def __call__(self) -> Made:
        """The step."""
        model = _Norm(self.width)
        return adding(model), (), lambda outputs: Kept(outputs, model.gradient)


class _Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.other = nn.LayerNorm(width), nn.LayerNorm(width)
        self.other.requires_grad_(False)
        self.inputs = nn.Parameter(torch.zeros(4096, width))
        self.register_buffer("gradient", torch.zeros(4096, width))

    def forward(self) -> Tensor:
        return self.norm(self.inputs)
