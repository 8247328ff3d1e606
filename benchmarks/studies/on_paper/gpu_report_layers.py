"""More single layers of Liger's public table, as their baselines: losses, norms and positions without a product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from studies.on_paper.gpu_report_parts import Kept, Made, adding


@dataclass(frozen=True, slots=True)
class Entropy:
    """Cross entropy of 16,384 rows in float32 over so many classes."""

    classes: int

    def __call__(self) -> Made:
        """The step."""
        return adding(_Entropy(self.classes)), ()


class _Entropy(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.inputs = nn.Parameter(torch.zeros(16384, classes))
        self.register_buffer("targets", torch.zeros(16384, dtype=torch.long))

    def forward(self) -> Tensor:
        return F.cross_entropy(self.inputs, self.targets)


@dataclass(frozen=True, slots=True)
class Divergence:
    """A divergence of distributions over so many classes in float32: Kullback and Leibler's, or Jensen and Shannon's.

    What is compared is the logarithm of a softmax, which is made once there, and lies beside what it was made of.
    """

    classes: int
    rows: int
    symmetric: bool

    def __call__(self) -> Made:
        """The step."""
        return adding(_Divergence(self)), (), _kept_loss


def _kept_loss(loss: Tensor) -> Kept:
    return Kept(loss, torch.ones_like(loss))


class _Divergence(nn.Module):
    def __init__(self, kind: Divergence) -> None:
        super().__init__()
        self.symmetric = kind.symmetric
        self.inputs = nn.Parameter(torch.zeros(kind.rows, kind.classes))
        self.register_buffer("targets", torch.zeros(kind.rows, kind.classes))

    def forward(self) -> Tensor:
        logs = self.inputs.log_softmax(dim=-1)
        if not self.symmetric:
            return F.kl_div(logs, self.targets, reduction="batchmean")
        mean = torch.lerp(logs.exp(), self.targets.exp(), 0.5)
        first = F.kl_div(mean.log(), self.targets, reduction="none", log_target=True).sum(dim=-1)
        second = F.kl_div(mean.log(), logs, reduction="none", log_target=True).sum(dim=-1)
        return ((0.5 * first + 0.5 * second) / len(logs)).sum()


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """Llama's norm for 2,048 rows of `width` numbers in bfloat16, whose weight, and so its output, is in float32."""

    width: int

    def __call__(self) -> Made:
        """The step."""
        model = _RmsNorm(self.width)
        return adding(model), (), lambda outputs: Kept(outputs, model.gradient)


class _RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.other = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width), requires_grad=False)
        self.inputs = nn.Parameter(torch.zeros(2048, width, dtype=torch.bfloat16))
        self.register_buffer("gradient", torch.zeros(2048, width, dtype=torch.bfloat16))

    def forward(self) -> Tensor:
        x = self.inputs.float()
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + 1e-6)
        return self.weight * x.to(torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Rope:
    """Positions of 32 heads of queries and 8 of keys, turned in bfloat16; `width` is that of all queries."""

    width: int
    tokens: int

    def __call__(self) -> Made:
        """The step."""
        return _Rope(self), (), _Turned


class _Rope(nn.Module):
    def __init__(self, kind: Rope) -> None:
        super().__init__()
        head = kind.width // 32
        for name, heads in (("query", 32), ("key", 8)):
            values = torch.zeros(1, kind.tokens, heads, head, dtype=torch.bfloat16)
            setattr(self, name, nn.Parameter(values))
            self.register_buffer(f"{name}_gradient", torch.zeros_like(values))
        self.register_buffer("places", torch.zeros(1, kind.tokens, dtype=torch.long))
        for name in ("cosines", "sines"):
            self.register_buffer(name, torch.zeros(1, kind.tokens, head, dtype=torch.bfloat16))

    def forward(self) -> Any:
        cosines, sines = self.cosines[:, None], self.sines[:, None]
        parts = [part.transpose(1, 2) for part in (self.query, self.key)]
        # As there, a local of the function that turns them: both lie there to its end.
        turned = [part * cosines + _half_turned(part) * sines for part in parts]
        return turned, parts, [one.transpose(1, 2) for one in (self.query_gradient, self.key_gradient)]


def _half_turned(x: Tensor) -> Tensor:
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-second, first), dim=-1)


@dataclass(frozen=True, slots=True)
class _Turned:
    """Outputs, what they were made of, and their gradients."""

    outputs: Any

    def backward(self) -> None:
        """The backward, which gives gradients to nobody."""
        turned, parts, gradients = self.outputs
        torch.autograd.grad(turned, parts, gradients, retain_graph=True)
