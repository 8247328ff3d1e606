"""Programs with layers that make far more than they read, as people write them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS = 16, 2
Layer = Callable[[], nn.Module]


class FeedForward(nn.Module):
    """Two products with an activation between them.

    Args:
        activation: The activation.
        gated: Whether a third product scales it.
        bias: Whether the products add one.
        dropout: Of the values between the products.
    """

    def __init__(
        self, activation: Callable[[Tensor], Tensor], *, gated: bool = False, bias: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.activation, self.dropout = activation, dropout
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=bias), nn.Linear(4 * WIDTH, WIDTH, bias=bias)
        self.gate = nn.Linear(WIDTH, 4 * WIDTH, bias=bias) if gated else None

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.activation(self.up(x))
        if self.gate is not None:
            hidden = hidden * self.gate(x)
        return self.down(F.dropout(hidden, self.dropout, self.training))


class Adapted(FeedForward):
    """Frozen products with a trained product of two small matrices beside each."""

    def __init__(self) -> None:
        super().__init__(F.silu, bias=False)
        self.requires_grad_(False)
        self.beside = nn.ModuleList([nn.Linear(WIDTH, 2), nn.Linear(2, 4 * WIDTH)])

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.beside
        return self.down(self.activation(self.up(x) + second(first(x))))


class Attention(nn.Module):
    """Attention that makes its scores.

    Args:
        mask: What is done to scores, given as (batch, heads, length, length).
    """

    def __init__(self, mask: Callable[[Tensor], Tensor] = lambda scores: scores) -> None:
        super().__init__()
        self.mask = mask
        self.all, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.all(x).chunk(3, -1)
        query, key, value = (one.unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in parts)
        scores = self.mask(query @ key.transpose(-1, -2) * 0.25).softmax(-1)
        return self.out((scores @ value).transpose(1, 2).flatten(2))


class Fused(Attention):
    """Attention by one operator of the parts of one product.

    Args:
        unbound: Whether the parts are taken along a dimension of their own.
    """

    def __init__(self, *, unbound: bool = False) -> None:
        super().__init__()
        self.unbound = unbound

    def forward(self, x: Tensor) -> Tensor:
        if self.unbound:
            query, key, value = self.all(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        else:
            parts = self.all(x).chunk(3, -1)
            query, key, value = (one.unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in parts)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(seen.transpose(1, 2).flatten(2))


class Turned(Attention):
    """Parts of one product, with its sequences in another order."""

    def forward(self, x: Tensor) -> Tensor:
        one, other, third = self.all(x).flip(0).chunk(3, -1)
        return self.out(one.tanh() * other + third)


class Grouped(nn.Module):
    """Attention by one operator, in which several heads share a key, with queries and keys rotated by their places.

    Args:
        stretched: Whether keys are stretched to all heads before.
        mask: The shape of a mask, if there is one.
        dropout: Of the weights of the attention.
    """

    HEADS, KEYS = 8, 4

    def __init__(self, *, stretched: bool, mask: tuple[int, ...] = (), dropout: float = 0.0) -> None:
        super().__init__()
        self.stretched, self.mask, self.dropout = stretched, mask, dropout
        self.query, self.out = nn.Linear(WIDTH, 4 * self.HEADS), nn.Linear(4 * self.HEADS, WIDTH)
        self.key, self.value = nn.Linear(WIDTH, 4 * self.KEYS), nn.Linear(WIDTH, 4 * self.KEYS)
        self.norm = nn.LayerNorm(4)
        self.register_buffer("scale", torch.rand(()))

    def forward(self, x: Tensor) -> Tensor:
        made = ((self.query, self.HEADS), (self.key, self.KEYS), (self.value, self.KEYS))
        query, key, value = (part(x).unflatten(-1, (heads, 4)).transpose(1, 2) for part, heads in made)
        query, key = rotated(self.norm(query)), rotated(key)
        if self.stretched:
            key, value = (one.repeat_interleave(self.HEADS // self.KEYS, 1) for one in (key, value))
        mask = (self.scale * torch.ones(self.mask, dtype=x.dtype)).cumsum(-1) if self.mask else None
        seen = F.scaled_dot_product_attention(
            query, key, value, mask, self.dropout, is_causal=mask is None, enable_gqa=not self.stretched
        )
        return self.out(seen.transpose(1, 2).flatten(2))


def rotated(x: Tensor) -> Tensor:
    """Values turned by an angle that grows with their place."""
    angles = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * torch.arange(1, 3, dtype=x.dtype)
    one, other = x.chunk(2, -1)
    return torch.cat((one * angles.cos() - other * angles.sin(), other * angles.cos() + one * angles.sin()), -1)


class Messages(nn.Module):
    """What nodes of a graph send along edges, of which there are several for each, added up where these end.

    Args:
        selected: Whether nodes are selected and their messages scattered, and not indexed and added.
    """

    def __init__(self, *, selected: bool) -> None:
        super().__init__()
        self.selected = selected
        self.edges: Tensor
        self.register_buffer("edges", torch.randint(30, (2, 170)))
        self.first, self.second = nn.Linear(2 * WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        source, target = self.edges
        if self.selected:
            pairs = [x.index_select(0, source), x.index_select(0, target)]
        else:
            pairs = [x[source], x[target]]
        sent = self.second(F.silu(self.first(torch.cat(pairs, -1))))
        zeros = torch.zeros_like(x)
        if self.selected:
            return zeros.scatter_add(0, target[:, None].expand_as(sent), sent)
        return zeros.index_add(0, target, sent)


class Model(nn.Module):
    """Layers one behind the other, each added to what it reads, and a mean of squares.

    Args:
        layer: Makes a layer.
        count: How many there are.
    """

    def __init__(self, layer: Layer, count: int = 2) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(count))
        self.layers = nn.ModuleList(layer() for _ in range(count))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        for norm, layer in zip(self.norms, self.layers):
            x = x + layer(norm(x))
        return self.head(x).square().mean()


class Returned(Model):
    """One that also returns a large value, which is needed whole."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        layer = self.layers[0]
        assert isinstance(layer, FeedForward)
        hidden = layer.activation(layer.up(x))
        return self.head(layer.down(hidden)).square().mean(), hidden


def causal(scores: Tensor) -> Tensor:
    """Scores of later rows left out."""
    return scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))


def capped(scores: Tensor) -> Tensor:
    """Scores between two bounds, more for rows that are near."""
    rows = torch.arange(scores.shape[-1], dtype=scores.dtype)
    return torch.tanh(scores) * 5 - (rows[:, None] - rows).abs()


def by_sequence(scores: Tensor) -> Tensor:
    """Scores of each sequence up to a length of its own."""
    batch, _, length, _ = scores.shape
    ends = length - torch.arange(batch) % 3
    return scores.masked_fill((torch.arange(length) >= ends[:, None])[:, None, None], -1e9)


@dataclass(frozen=True)
class Layers:
    """A model, and the shape of its activations.

    Attributes:
        make: Makes the model.
        shape: Of its input, but for the width.
    """

    make: Callable[[], nn.Module]
    shape: tuple[int, ...] = (3, 10)


def rescaled(x: Tensor) -> Tensor:
    """Activations of a fixed length altogether, which no chunk knows before all of them are there."""
    return x * (x.square().sum() + 1).rsqrt()


LAYERS = {
    "summed": Layers(lambda: Model(lambda: FeedForward(lambda x: F.gelu(x + x.sum(0)))), (30,)),
    "rescaled": Layers(lambda: Model(lambda: FeedForward(rescaled))),
    "gelu": Layers(lambda: Model(lambda: FeedForward(F.gelu))),
    "rows": Layers(lambda: Model(lambda: FeedForward(F.relu, bias=False)), (30,)),
    "gated": Layers(lambda: Model(lambda: FeedForward(F.silu, gated=True, bias=False))),
    "adapted": Layers(lambda: Model(Adapted)),
    "attention": Layers(lambda: Model(Attention), (3, 40)),
    "causal": Layers(lambda: Model(lambda: Attention(causal)), (2, 48)),
    "capped": Layers(lambda: Model(lambda: Attention(capped)), (2, 48)),
    "fused": Layers(lambda: Model(Fused), (4, 10)),
    "unbound": Layers(lambda: Model(lambda: Fused(unbound=True)), (4, 10)),
    "grouped": Layers(lambda: Model(lambda: Grouped(stretched=False))),
    "stretched": Layers(lambda: Model(lambda: Grouped(stretched=True))),
    "masked": Layers(lambda: Model(lambda: Grouped(stretched=True, mask=(10, 10)))),
    "masked_by_head": Layers(lambda: Model(lambda: Grouped(stretched=True, mask=(1, 8, 10, 10)))),
    "messages": Layers(lambda: Model(lambda: Messages(selected=False)), (30,)),
    "scattered": Layers(lambda: Model(lambda: Messages(selected=True)), (30,)),
    "by_sequence": Layers(lambda: Model(lambda: Attention(by_sequence)), (4, 40)),
}
