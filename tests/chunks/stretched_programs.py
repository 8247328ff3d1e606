"""Programs whose layers make far more than they read without a product: of images, and of what is stretched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.stretched import Additive, Splines


class Distances(nn.Module):
    """Distances of all points to all centres."""

    def __init__(self, centres: int = 16, width: int = 8) -> None:
        super().__init__()
        self.centres, self.last = nn.Parameter(torch.randn(centres, width)), nn.Linear(centres, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.exp(-(x[:, None] - self.centres).norm(dim=-1)))


class Joint(nn.Module):
    """A network of all pairs of two sequences."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(width, width), nn.Linear(width, 1)

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        pairs = torch.relu(one[:, :, None] + other[:, None])
        return self.last(torch.relu(self.inner(pairs)))


class Stem(nn.Module):
    """The first layers of a network of images, up to where these are small."""

    def __init__(self, norm: Callable[[int], nn.Module], pool: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1), norm(16)
        self.second, self.last = nn.Conv2d(16, 16, 3, padding=1, groups=4), nn.Conv2d(16, 4, 3)
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x)))
        return self.last(self.pool(x + F.silu(self.second(x))))


class Enlarging(nn.Module):
    """Images that are enlarged, and made small again."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode = mode
        self.first, self.norm, self.last = nn.Conv2d(4, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.Conv2d(6, 1, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.interpolate(F.silu(self.norm(self.first(x))), scale_factor=2, mode=self.mode)
        return self.last(torch.tanh(x))


class Transposed(nn.Module):
    """The same by a transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.ConvTranspose2d(4, 8, 4, 2, 1), nn.Conv2d(8, 2, 3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(x)))


class UNet(nn.Module):
    """Large images beside a way through small ones."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, channels, 3, padding=1), nn.GroupNorm(4, channels)
        self.down, self.up = nn.Conv2d(channels, channels, 3, 2, 1), nn.Conv2d(channels, channels, 3, padding=1)
        self.last = nn.Conv2d(2 * channels, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        large = F.silu(self.norm(self.first(x)))
        small = F.interpolate(self.up(F.silu(self.down(large))), scale_factor=2)
        return self.last(torch.cat([small, large], 1))


class Classified(nn.Module):
    """A class for each pixel, by a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.classes = nn.Conv2d(4, 32, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.cross_entropy(self.classes(x), x.argmax(1), reduction="sum")


@dataclass(frozen=True)
class Stretched:
    """A program, and the shapes of what it is given."""

    make: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...]


def _groups(channels: int) -> nn.Module:
    return nn.GroupNorm(2, channels)


def _frozen(channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels).eval()


def _largest(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 2)


def _mean(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, 2)


def _few(x: Tensor) -> Tensor:
    return F.adaptive_avg_pool2d(x, 3)


PROGRAMS: dict[str, Stretched] = {
    "splines": Stretched(lambda: Splines(8, 8, layers=2), ((24, 8),)),
    "additive": Stretched(lambda: Additive(8), ((6, 12, 8),)),
    "distances": Stretched(Distances, ((24, 8),)),
    "joint": Stretched(Joint, ((6, 9, 8), (6, 7, 8))),
    "groups": Stretched(lambda: Stem(_groups, _largest), ((6, 3, 8, 8),)),
    "frozen": Stretched(lambda: Stem(_frozen, _mean), ((6, 3, 8, 8),)),
    "few": Stretched(lambda: Stem(_groups, _few), ((6, 3, 8, 8),)),
    **{
        mode: Stretched(lambda mode=mode: Enlarging(mode), ((6, 4, 6, 6),))  # type: ignore[misc]
        for mode in ("nearest", "bilinear", "bicubic")
    },
    "transposed": Stretched(Transposed, ((6, 4, 6, 6),)),
    "unet": Stretched(UNet, ((6, 3, 8, 8),)),
}
"""Programs with layers that can be cut."""
