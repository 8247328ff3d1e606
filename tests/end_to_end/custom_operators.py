"""Operators of a library that random programs call: pure, with an effect, reading lengths from values, communicating.

If a process group was made, the last one and `gathered` wait for the other ranks, which run the same program.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op
from torch.distributed._functional_collectives import all_gather_tensor_autograd

EFFECTS: list[str] = []
"""What operators with an effect left behind, in order."""


@torch.library.custom_op("random_programs::scaled", mutates_args=())
def scaled(x: Tensor) -> Tensor:
    """Pure, and not known to be."""
    return x.sin() * 0.5


@torch.library.custom_op("random_programs::summed", mutates_args=())
def summed(x: Tensor, ends: Tensor) -> Tensor:
    """Sums of consecutive rows; refuses ends that do not increase up to the number of rows."""
    assert ends[0] == 0 and ends[-1] == len(x) and bool((ends[1:] > ends[:-1]).all()), f"wrong ends {ends}"  # noqa: PT018
    return torch.stack([x[a:b].sum(0) for a, b in zip(ends[:-1].tolist(), ends[1:].tolist())])


@torch.library.custom_op("random_programs::told", mutates_args=())
def told(x: Tensor) -> Tensor:
    """Notes that it ran."""
    EFFECTS.append(str(tuple(x.shape)))
    return x.clone()


@torch.library.custom_op("random_programs::exchanged", mutates_args=())
def exchanged(x: Tensor) -> Tensor:
    """The mean over the ranks."""
    mean = x.clone(memory_format=torch.contiguous_format)
    if dist.is_initialized():
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
    return mean


def gathered(x: Tensor) -> Tensor:
    """The rows of all ranks, by a collective that Dynamo traces and that has a gradient."""
    if dist.is_initialized():
        return all_gather_tensor_autograd(x.contiguous(), 0, dist.group.WORLD)
    return torch.cat((x, x))


scaled.register_fake(torch.empty_like)
summed.register_fake(lambda x, ends: x.new_empty((len(ends) - 1, *x.shape[1:])))
told.register_fake(torch.empty_like)
exchanged.register_fake(lambda x: torch.empty_like(x, memory_format=torch.contiguous_format))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _scaled_backward(ctx: Any, gradient: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return gradient * x.cos() * 0.5


def _summed_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    x, ends = ctx.saved_tensors
    of = torch.searchsorted(ends, torch.arange(len(x), device=x.device), right=True) - 1
    return gradient[of], None


scaled.register_autograd(_scaled_backward, setup_context=_keep)
summed.register_autograd(_summed_backward, setup_context=_keep)
exchanged.register_autograd(lambda ctx, gradient: exchanged(gradient))
told.register_autograd(lambda ctx, gradient: gradient)
_register_effectful_op(torch.ops.random_programs.told.default, _EffectType.ORDERED)
