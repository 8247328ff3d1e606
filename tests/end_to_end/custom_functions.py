"""Autograd functions that people write by hand, among them those whose backward changes what the forward was given."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Curved(torch.autograd.Function):
    """``sin(x) * y`` that keeps both; its second argument gets no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return x.sin() * y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        x, y = ctx.saved_tensors
        return gradient * x.cos() * y, None


class ChangesSaved(torch.autograd.Function):
    """The identity, whose backward multiplies the saved second argument by two."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, state: Tensor) -> Tensor:
        ctx.save_for_backward(state)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (state,) = ctx.saved_tensors
        state.mul_(2.0)
        return gradient, None


class CountsBackwards(torch.autograd.Function):
    """The identity, whose backward adds one to the second argument, which it holds as an attribute."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, state: Tensor) -> Tensor:
        ctx.state = state
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.state.add_(1)
        return gradient * 0.5, None


class WithMask(torch.autograd.Function):
    """A differentiable and a non-differentiable output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        mask = x > 0
        ctx.save_for_backward(mask)
        ctx.mark_non_differentiable(mask)
        return x * mask, mask

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> Tensor:
        (mask,) = ctx.saved_tensors
        return gradient * mask


class KeepsResult(torch.autograd.Function):
    """``exp(x / 4)`` that keeps its own result, and gets `None` for a gradient that nobody made."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        result = (x / 4).exp()
        ctx.save_for_backward(result)
        return result, x * 2

    @staticmethod
    def backward(ctx: Any, first: Tensor | None, second: Tensor | None) -> Tensor | None:
        (result,) = ctx.saved_tensors
        found = None if first is None else first * result / 4
        if second is None:
            return found
        return second * 2 if found is None else found + second * 2
