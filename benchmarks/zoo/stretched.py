"""Layers whose large values are those of pairs, or of numbers and the points of a grid."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Splines(nn.Module):
    """Layers of radial functions around the points of a grid, as of Kolmogorov-Arnold networks."""

    def __init__(self, width: int = 64, points: int = 16, layers: int = 3) -> None:
        super().__init__()
        self.register_buffer("grid", torch.linspace(-2, 2, points))
        self.weights = nn.ParameterList(torch.randn(width * points, width) / 32 for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        """Values of the shape of `x`: rows, width."""
        for weight in self.weights:
            x = torch.tanh(torch.exp(-((x[..., None] - self.grid) ** 2)).flatten(-2) @ weight)
        return x


class Additive(nn.Module):
    """Attention by a network of each pair of tokens, as in translation before transformers."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.query, self.key, self.score = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 1, False)

    def forward(self, x: Tensor) -> Tensor:
        """Values of the shape of `x`: batch, length, width."""
        pairs = torch.tanh(self.query(x)[:, :, None] + self.key(x)[:, None])
        return self.score(pairs).squeeze(-1).softmax(-1) @ x
