"""Networks of images, and layers of pairs and grids, drawn at random, in chunks: the same as eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from chunks.chunked import Chunked, step
from remat_compiler.chunks.layers import chunk_layers
from remat_compiler.chunks.losses import chunk_losses

CHANNELS, SIZE = 4, 8
Part = Callable[[], nn.Module]


class Of(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Beside(nn.Module):
    """A way through other sizes, beside the value itself."""

    def __init__(self, join: Callable[[Tensor, Tensor], Tensor], inner: nn.Module) -> None:
        super().__init__()
        self.join, self.inner = join, inner

    def forward(self, x: Tensor) -> Tensor:
        return self.join(x, F.interpolate(self.inner(x), x.shape[-2:]))


def _joined(one: Tensor, other: Tensor) -> Tensor:
    return torch.cat([one, other], 1)[:, ::2] + one


PARTS: dict[str, Part] = {
    "convolution": lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
    "wide": lambda: nn.Sequential(nn.Conv2d(CHANNELS, 16, 1), nn.GELU(), nn.Conv2d(16, CHANNELS, 1)),
    "of_groups": lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=2, dilation=2, groups=2, bias=False),
    "smaller": lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, stride=2, padding=1),
    "transposed": lambda: nn.ConvTranspose2d(CHANNELS, CHANNELS, 4, 2, 1),
    "groups": lambda: nn.GroupNorm(2, CHANNELS),
    "frozen": lambda: nn.BatchNorm2d(CHANNELS).eval(),
    "batch": lambda: nn.BatchNorm2d(CHANNELS),
    "largest": lambda: nn.MaxPool2d(2, ceil_mode=True),
    "mean": lambda: nn.AvgPool2d(2, ceil_mode=True),
    "few": lambda: nn.AdaptiveAvgPool2d(3),
    "nearest": lambda: nn.Upsample(scale_factor=2),
    "bilinear": lambda: nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True),
    "bicubic": lambda: nn.Upsample(scale_factor=2, mode="bicubic"),
    "added": lambda: Beside(torch.add, nn.Conv2d(CHANNELS, CHANNELS, 3, stride=2, padding=1)),
    "joined": lambda: Beside(_joined, nn.ConvTranspose2d(CHANNELS, CHANNELS, 2, 2)),
    "gated": lambda: Of(lambda x: x * x.mean((2, 3), keepdim=True).sigmoid()),
    "pixels": lambda: Of(lambda x: F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2).tanh()),
    "last": lambda: Of(lambda x: F.silu(x.contiguous(memory_format=torch.channels_last))),
    # Images that depend on each other.
    "earlier": lambda: Of(lambda x: x.cumsum(0) * 0.1),
    # Pairs, and points of a grid.
    "pairs": lambda: Of(lambda x: (x.flatten(2)[..., None] * x.mean((2, 3))[:, :, None, None]).amax(-1).view_as(x)),
    "grid": lambda: Of(lambda x: torch.exp(-((x[..., None] - torch.arange(5, dtype=x.dtype)) ** 2)).sum(-1)),
    "distances": lambda: Of(lambda x: x + (x.flatten(1)[:, None] - x.flatten(1)[None]).norm(dim=-1).sum() * 1e-3),
}
"""What programs do, from images to images."""


@dataclass(frozen=True)
class Drawn:
    """A program.

    Attributes:
        parts: What it does, in order.
        images: How many images there are.
        frozen: Whether weights are not trained.
        chunks: Chunks that are asked for.
        losses: Whether losses are cut, and not layers.
        decomposed: Whether operators are decomposed as for Inductor.
    """

    parts: Sequence[str]
    images: int
    frozen: bool
    chunks: int
    losses: bool
    decomposed: bool


class Model(nn.Module):
    """The program of a drawing."""

    def __init__(self, drawn: Drawn) -> None:
        super().__init__()
        parts = nn.Sequential(*(PARTS[name]() for name in drawn.parts)).requires_grad_(not drawn.frozen)
        self.first, self.parts = nn.Conv2d(2, CHANNELS, 3, padding=1), parts
        self.last = nn.Conv2d(CHANNELS, 12, 1)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.last(self.parts(self.first(x)))
        return F.cross_entropy(scores, scores.argmin(1)) + scores.square().mean()


DRAWN = st.builds(
    Drawn,
    parts=st.lists(st.sampled_from(sorted(PARTS)), min_size=1, max_size=6),
    images=st.sampled_from([2, 5, 6]),
    frozen=st.booleans(),
    chunks=st.integers(2, 5),
    losses=st.booleans(),
    decomposed=st.booleans(),
)


@given(DRAWN)
@settings(max_examples=6)
def test_drawn_images_in_chunks_are_the_same(drawn: Drawn) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = Model(drawn).double(), torch.randn(drawn.images, 2, SIZE, SIZE, dtype=torch.float64)
    backend = Chunked(drawn.chunks, drawn.decomposed, chunk_losses if drawn.losses else chunk_layers)
    made = step(torch.compile(model, backend=backend), model, (x,))
    torch.testing.assert_close(made, step(model, model, (x,)), rtol=1e-9, atol=1e-10)
