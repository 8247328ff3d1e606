"""What the simulator says of a contracted graph is what Inductor's emitted code allocates: never much less."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from capture.emitted import estimated_and_emitted
from remat_compiler.capture.inlining import Inlined, is_realised
from remat_compiler.partition.request import PartitionRequest

SMALL_BYTES = 4096
"""Scalars and flags of kernels, which are no storages of the contracted graph."""
LOWEST, HIGHEST = 0.995, 1.6
"""The estimate over what is emitted; it may be high, since Inductor writes over values that die."""


class Pooled(nn.Module):
    """Values pooled by small windows early, and read again late."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(4, 16, 3, padding=1), nn.Conv2d(24, 4, 3, padding=1)
        self.deep = nn.Sequential(*(nn.Conv2d(16, 16, 3, padding=1) for _ in range(3)))
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        deep = self.up(torch.relu(self.deep(F.max_pool2d(x, 2))))
        y: Tensor = self.last(torch.cat([x, deep], 1))
        return y.square().mean()


class SharedBias(nn.Module):
    """Attention in single operators; a bias that all layers and the four sequences share gets one gradient."""

    def __init__(self, width: int = 32, layers: int = 3, length: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, 3 * width) for _ in range(layers)])
        self.bias = nn.Parameter(torch.randn(1, length, length))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            q, k, v = layer(x).chunk(3, -1)
            x = x + torch.softmax(q @ k.transpose(-1, -2) + self.bias, -1) @ v
        return x.square().mean()


class TwoReaders(nn.Module):
    """Pointwise values that a product reads behind other products."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(6)])
        self.scale, self.mix = nn.Parameter(torch.ones(width)), nn.Parameter(torch.randn(width, width))

    def forward(self, x: Tensor) -> Tensor:
        skip = torch.tanh(x * self.scale) + x.sin()
        for layer in self.layers:
            x = F.gelu(layer(x)) * self.scale
        return (skip @ self.mix + x).square().mean()


class Looked(nn.Module):
    """Rows looked up; the gradient of the table is scattered into zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(300, 32), nn.Linear(32, 300)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.table(x.long())
        return F.cross_entropy(self.head(torch.tanh(rows)).flatten(0, 1), x.long().flatten())


class Classifier(nn.Module):
    """A softmax over much more than the layers hold, and activations whose gradients take their memory over."""

    def __init__(self, width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(4)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + F.gelu(layer(self.norm(x)))
        return F.cross_entropy(self.head(x), torch.arange(len(x)))


class Scanned(nn.Module):
    """A linear recurrence by halves, as state-space models compute it: loops over slices, without a single kernel."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.rate, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        decay = torch.exp(-F.softplus(self.rate(x)))
        return self.out(self.scan(decay, x)).square().mean()

    def scan(self, decay: Tensor, x: Tensor) -> Tensor:
        """All states of ``state = decay * state + x``, along the second dimension."""
        if x.shape[1] == 1:
            return x
        later = self.scan(decay[:, ::2] * decay[:, 1::2], x[:, 1::2] + decay[:, 1::2] * x[:, ::2])
        first = torch.cat([x[:, :1], x[:, 2::2] + decay[:, 2::2] * later[:, :-1]], 1)
        return torch.stack([first, later], 2).flatten(1, 2)


class Enlarged(nn.Module):
    """Scores of small images, enlarged some after the others; of each pixel's scores one is taken, and these joined."""

    def __init__(self, classes: int = 20) -> None:
        super().__init__()
        self.head = nn.Conv2d(4, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        parts = [F.interpolate(part, scale_factor=4, mode="bilinear") for part in self.head(x).chunk(4)]
        taken = [F.log_softmax(one, 1).gather(1, (one[:, :1] > 0).long()) for one in parts]
        return -torch.cat(taken).mean()


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "pooled": (Pooled, lambda: torch.randn(2, 4, 32, 32)),
    "shared bias": (SharedBias, lambda: torch.randn(4, 64, 32)),
    "two readers": (TwoReaders, lambda: torch.randn(256, 64)),
    "looked up": (Looked, lambda: torch.randint(300, (4, 64)).float()),
    "classifier": (Classifier, lambda: torch.randn(256, 64)),
    "enlarged": (Enlarged, lambda: torch.randn(8, 4, 16, 16)),
    "scanned": (Scanned, lambda: torch.randn(8, 32, 32)),
}
EXACT = ("classifier",)
"""Models of which all that is emitted is known."""


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("share", [0.75, 0.0])
def test_the_first_estimate_is_not_low(name: str, share: float) -> None:
    make, draw = MODELS[name]
    torch.manual_seed(0)
    model, x = make(), draw()
    plain = PartitionRequest(None, max_slowdown=None, free_layout=False)
    everything, _ = estimated_and_emitted(model, (x,), plain)
    asked = PartitionRequest(int(share * everything), take_smallest=True, max_slowdown=None, free_layout=False)
    estimate, emitted = estimated_and_emitted(model, (x,), asked)
    assert LOWEST * emitted - SMALL_BYTES <= estimate <= HIGHEST * emitted


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("share", [0.75, 0.0])
def test_results_take_over_the_memory_of_arguments_that_end(name: str, share: float) -> None:
    make, draw = MODELS[name]
    torch.manual_seed(0)
    model, x = make(), draw()
    everything, _ = estimated_and_emitted(model, (x,), PartitionRequest(None, max_slowdown=None))
    asked = PartitionRequest(int(share * everything), take_smallest=True, max_slowdown=None)
    estimate, emitted = estimated_and_emitted(model, (x,), asked)
    assert abs(estimate - emitted) <= SMALL_BYTES


def test_values_that_are_read_as_they_are_and_transposed_are_counted_soon() -> None:
    """Each step doubles what a loop would compute, so all of it must never be listed."""
    graph = fx.Graph()
    value = graph.placeholder("x")
    value.meta["val"] = torch.empty(8, 8)
    held = Inlined.read(value)
    for _ in range(40):
        turned = graph.call_function(torch.ops.aten.t.default, (value,))
        total = graph.call_function(torch.ops.aten.add.Tensor, (value, turned))
        turned.meta["val"] = total.meta["val"] = torch.empty(8, 8)
        held = Inlined.of((held, held.through(turned))).and_computes(total)
        value = total
    assert len(held.computes) < 200
    assert is_realised(value, held, [])
    assert held.frontier == {next(iter(graph.nodes))}
