"""Networks of images, and layers of pairs and grids: large values within them, whole or in chunks.

    python -m studies.chunked_loss.networks [decoder frozen splines additive distances] [--budgets 0.4 min] \
        [--inners eager inductor]

Each is followed by a mean of squares, so that the whole step is one graph; the rest is as in `language_loss`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remat_compiler.errors import InfeasibleBudget
from studies.chunked_loss.language_loss import Asked, print_table
from zoo.loss import MeanSquare
from zoo.stretched import Additive, Splines


class Residual(nn.Module):
    """Two convolutions behind norms, and the value itself beside them."""

    def __init__(self, given: int, made: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.norms = nn.ModuleList([norm(given), norm(made)])
        self.inner = nn.ModuleList([nn.Conv2d(given, made, 3, padding=1), nn.Conv2d(made, made, 3, padding=1)])
        self.beside = nn.Conv2d(given, made, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Images of `made` channels."""
        inner = self.inner[0](F.silu(self.norms[0](x)))
        return self.beside(x) + self.inner[1](F.silu(self.norms[1](inner)))


class Decoder(nn.Module):
    """Latent images enlarged twice, as by the decoder of an autoencoder; norms are of groups."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        sizes = [4 * width, 4 * width, 2 * width, width]
        self.first = nn.Conv2d(4, sizes[0], 3, padding=1)
        pairs = pairwise(sizes)
        self.blocks = nn.ModuleList(Residual(given, made, lambda n: nn.GroupNorm(8, n)) for given, made in pairs)
        self.last = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Images of three channels and four times the height and width."""
        x = self.blocks[0](self.first(x))
        for block in list(self.blocks)[1:]:
            x = block(F.interpolate(x, scale_factor=2))
        return self.last(F.silu(x))


class Frozen(nn.Module):
    """A classifier of images whose batch norms are frozen, as detectors are fine-tuned."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 7, 2, 3)
        self.blocks = nn.Sequential(
            *(Residual(width, width, nn.BatchNorm2d) for _ in range(2)),
            nn.Conv2d(width, 2 * width, 3, 2, 1),
            *(Residual(2 * width, 2 * width, nn.BatchNorm2d) for _ in range(2)),
        )
        self.last = nn.Linear(2 * width, 100)
        self.eval()

    def train(self, mode: bool = True) -> Frozen:
        """Statistics are never those of a batch."""
        return super().train(False)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of 100 classes."""
        return self.last(self.blocks(F.max_pool2d(F.relu(self.first(x)), 2)).mean((2, 3)))


class Distances(nn.Module):
    """A linear layer on the distances of points to centres, computed from their differences."""

    def __init__(self, centres: int = 256, width: int = 32) -> None:
        super().__init__()
        self.centres, self.last = nn.Parameter(torch.randn(centres, width)), nn.Linear(centres, width)

    def forward(self, x: Tensor) -> Tensor:
        """Values of the shape of `x`: points, width."""
        return self.last(torch.exp(-(x[:, None] - self.centres).abs().sum(-1) / 32))


@dataclass(frozen=True, slots=True)
class Network:
    """A network, and the shape of what it is given."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]


NETWORKS = {
    "decoder": Network(Decoder, (8, 4, 16, 16)),
    "frozen": Network(Frozen, (16, 3, 96, 96)),
    "splines": Network(Splines, (2048, 64)),
    "additive": Network(Additive, (8, 96, 64)),
    "distances": Network(Distances, (1024, 32)),
}


def main() -> None:
    """Print a table of Markdown for each network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--budgets", nargs="*", default=["0.4", "min"])
    parser.add_argument("--inners", nargs="*", default=["eager", "inductor"])
    given = parser.parse_args()
    for name in given.networks:
        network = NETWORKS[name]

        def made(network: Network = network) -> nn.Module:
            torch.manual_seed(0)
            return MeanSquare(network.make())

        ways = [Asked("whole, without a budget", made, 1.0, "never"), Asked('whole, "min"', made, "min", "never")]
        ways += [Asked(f'chunks="auto", {budget}', made, budget, "auto") for budget in given.budgets]
        print(f"\n{name}\n", flush=True)
        images = torch.randn(network.shape, generator=torch.Generator().manual_seed(1))
        for inner in given.inners:
            try:
                print_table(ways, {"x": images}, [inner])
            except InfeasibleBudget as refused:
                print(f"\n{refused}", flush=True)


if __name__ == "__main__":
    main()
