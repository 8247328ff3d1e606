"""Families of kernels that reach another part of the device's FLOP rate than matrix products do.

A convolution or a fused attention often reaches a fraction of it (on a CPU a third, a tenth), their backwards
another; each is timed on one middling size, in float32, and carried over to other types.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch._ops import OpOverload

from remat_compiler.costs.clock import best_ns

FAMILIES = ("convolution", "convolution_backward", "attention", "attention_backward")

_CONVOLUTION = ((1, 1), (1, 1), (1, 1), False, (0, 0), 1)
"""Stride, padding, dilation, not transposed, output padding, groups."""
_CONVOLUTION_EXTENTS = {"cpu": (2, 64, 28), "cuda": (32, 256, 56)}
"""Batch, channels, pixels a side."""
_ATTENTION_EXTENTS = {"cpu": (2, 4, 128, 64), "cuda": (8, 16, 1024, 64)}
"""Batch, heads, length, width of a head."""


def family_of(target: OpOverload) -> str:
    """The family of a kernel; empty for matrix products and what is like them."""
    name = target._schema.name
    backward = "_backward" if "backward" in name else ""
    if "convolution" in name:
        return f"convolution{backward}"
    return f"attention{backward}" if "attention" in name else ""


def family_rate(family: str, device_type: str) -> float:
    """FLOP per second of one kernel of the family, float32."""
    prepare = _convolution if family.startswith("convolution") else _attention
    run, flops = prepare(device_type, family.endswith("backward"))
    run()  # the library sets itself up
    return flops / best_ns(run, device_type, most=5, seconds=0.006) * 1e9


def _convolution(device_type: str, backward: bool) -> tuple[Callable[[], object], int]:
    """A 3 by 3 convolution or its backward (both gradients), and its FLOPs."""
    batch, channels, side = _CONVOLUTION_EXTENTS[device_type]
    image = torch.full((batch, channels, side, side), 0.5, device=device_type)
    weight = torch.full((channels, channels, 3, 3), 0.5, device=device_type)
    flops = 2 * 9 * channels * image.numel()
    aten = torch.ops.aten
    if not backward:
        return lambda: aten.convolution.default(image, weight, None, *_CONVOLUTION), flops
    wanted = (True, True, False)
    return lambda: aten.convolution_backward.default(image, image, weight, None, *_CONVOLUTION, wanted), 2 * flops


def _attention(device_type: str, backward: bool) -> tuple[Callable[[], object], int]:
    """Attention or its backward, and its FLOPs: two products forward, five backward (as torch's counter has it)."""
    batch, heads, length, width = extents = _ATTENTION_EXTENTS[device_type]
    inputs = [torch.full(extents, 0.5, device=device_type, requires_grad=backward) for _ in range(3)]
    product = 2 * batch * heads * length * length * width
    if not backward:
        return lambda: F.scaled_dot_product_attention(*inputs), 2 * product
    with torch.enable_grad():
        out = F.scaled_dot_product_attention(*inputs)
    ones = torch.ones_like(out)
    return lambda: torch.autograd.grad(out, inputs, ones, retain_graph=True), 5 * product
