"""What autograd's `AccumulateGrad` does with a gradient, for one that is handed over within a backward."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor

_NOTHING = nullcontext()


def accumulate(leaf: Tensor, gradient: Tensor) -> None:
    """Add `gradient` to that of `leaf`, in place, or make it that; then call the leaf's post-accumulate hooks in order.

    Args:
        leaf: A leaf of autograd's graph.
        gradient: Its gradient, of the same shape and type, whose memory belongs to nobody else.

    Raises:
        RuntimeError: A hook returned something.
    """
    # Autograd has turned this off already, and each parameter counts.
    with torch.no_grad() if torch.is_grad_enabled() else _NOTHING:
        if leaf.grad is None:
            leaf.grad = _laid_out(gradient, leaf)
        else:
            leaf.grad += gradient
        hooks: dict[int, Callable[[Tensor], object]] | None = leaf._post_accumulate_grad_hooks
        # A hook may remove itself.
        for hook in tuple((hooks or {}).values()):
            if hook(leaf) is not None:
                raise RuntimeError("Tensor post accumulate grad hooks should return None.")


def _laid_out(gradient: Tensor, leaf: Tensor) -> Tensor:
    """The gradient in the layout that autograd promises, in memory of its own size; copied if need be."""
    stride = gradient.stride()
    # That of a dense leaf, else contiguous: the layout of a tensor made like it.
    dense = leaf.is_contiguous() and stride == leaf.stride()
    as_promised = dense or stride == torch.empty_like(leaf, device="meta").stride()
    if as_promised and gradient.untyped_storage().nbytes() == gradient.numel() * gradient.element_size():
        return gradient.detach()
    return torch.empty_like(leaf).copy_(gradient)
