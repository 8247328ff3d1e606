"""Families of kernels that reach another part of the device's FLOP rate than matrix products do.

A convolution or a fused attention often reaches a fraction of it (on a CPU a third, a tenth), their backwards
another; each is timed on middling sizes, in float32, and carried over to other types.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from remat_compiler.costs.clock import best_computing_ns

FAMILIES = ("convolution", "convolution_backward", "attention", "attention_backward")

_CONVOLUTION_EXTENTS = {"cpu": (2, 64, 28), "cuda": (32, 256, 56)}
"""Batch, channels, pixels a side."""
_ATTENTION_EXTENTS = {"cpu": (2, 4, 128, 64), "cuda": (8, 16, 1024, 64)}
"""Batch, heads, length, width of a head."""


def family_rate(family: str, device_type: str) -> float:
    """FLOP per second of one kernel of the family, float32."""
    prepare = _convolution if family.startswith("convolution") else _attention
    run, flops = prepare(device_type, family.endswith("backward"))
    run()  # the library sets itself up
    return flops / best_computing_ns(run, device_type, most=3, seconds=0.005) * 1e9


def _convolution(device_type: str, backward: bool) -> tuple[Callable[[], object], int]:
    """A 3 by 3 convolution and a 1 by 1 one that widens, or their backwards (both gradients), and their FLOPs."""
    batch, channels, side = _CONVOLUTION_EXTENTS[device_type]
    image = torch.full((batch, channels, side, side), 0.5, dtype=torch.float32, device=device_type)
    wide = torch.full((batch, 4 * channels, side, side), 0.5, dtype=torch.float32, device=device_type)
    square = torch.full((channels, channels, 3, 3), 0.5, dtype=torch.float32, device=device_type)
    widening = torch.full((4 * channels, channels, 1, 1), 0.5, dtype=torch.float32, device=device_type)
    aten = torch.ops.aten

    def forward() -> None:
        aten.convolution.default(image, square, None, *_same_size(1))
        aten.convolution.default(image, widening, None, *_same_size(0))

    def gradients() -> None:
        wanted = (True, True, False)  # gradients of image and weights; there is no bias
        aten.convolution_backward.default(image, image, square, None, *_same_size(1), wanted)
        aten.convolution_backward.default(wide, image, widening, None, *_same_size(0), wanted)

    # Two operations for each weight and pixel: 3 x 3 weights to as many channels, one weight to four times as many.
    flops = 2 * (9 + 4) * channels * image.numel()
    # Each of the two gradients is as much work as the forward.
    return (gradients, 2 * flops) if backward else (forward, flops)


def _same_size(padding: int) -> tuple[object, ...]:
    """Stride, padding, dilation, not transposed, output padding and groups of a convolution."""
    return (1, 1), (padding, padding), (1, 1), False, (0, 0), 1


def _attention(device_type: str, backward: bool) -> tuple[Callable[[], object], int]:
    """Attention or its backward, and its FLOPs: two products forward, five backward (as torch's counter has it)."""
    batch, heads, length, width = extents = _ATTENTION_EXTENTS[device_type]
    query, key, value = (
        torch.full(extents, 0.5, dtype=torch.float32, device=device_type, requires_grad=backward) for _ in range(3)
    )
    product = 2 * batch * heads * length * length * width
    # The backward is timed alone, on a graph that is kept for every run.
    if not backward:
        return lambda: F.scaled_dot_product_attention(query, key, value), 2 * product
    # Calibration runs without gradients; this graph is needed.
    with torch.enable_grad():
        out = F.scaled_dot_product_attention(query, key, value)
    ones = torch.ones_like(out)
    return lambda: torch.autograd.grad(out, (query, key, value), ones, retain_graph=True), 5 * product
