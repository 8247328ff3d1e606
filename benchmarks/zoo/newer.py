"""Networks of other shapes than the rest: a scan, a field of rays, messages on a graph, and two newer image networks.

Mamba follows Gu & Dao (2023), Section 3, with the scan written out step by step; NeRF Mildenhall et al. (2020),
Figure 7 and Equation 3; the graph network Gilmer et al. (2017), Section 2; ConvNeXt Liu et al. (2022), Section 2; the
diffusion U-Net Ho et al. (2020), Appendix B.  Sizes are smaller than the papers'.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from zoo.loss import Classifier, dropout_layer

Built = tuple[nn.Module, dict[str, Tensor]]

CLASSES = 100


class MambaBlock(nn.Module):
    """One selective state space layer with its gate, around a shortcut."""

    def __init__(self, width: int, states: int, dropout: float) -> None:
        super().__init__()
        inner = 2 * width
        self.rank = math.ceil(width / 16)
        self.states = states
        self.norm = nn.RMSNorm(width)
        self.into = nn.Linear(width, 2 * inner, bias=False)
        self.conv = nn.Conv1d(inner, inner, 4, groups=inner, padding=3)
        self.select = nn.Linear(inner, self.rank + 2 * states, bias=False)
        self.step = nn.Linear(self.rank, inner)
        self.log_decay = nn.Parameter(torch.arange(1, states + 1, dtype=torch.float32).log().repeat(inner, 1))
        self.skip = nn.Parameter(torch.ones(inner))
        self.out = nn.Linear(inner, width, bias=False)
        self.dropout = dropout_layer(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """``x + layer(x)`` for x of ``(batch, length, width)``."""
        u, gate = self.into(self.norm(x)).chunk(2, dim=-1)
        u = functional.silu(self.conv(u.mT)[..., : x.shape[1]].mT)
        rank, b, c = self.select(u).split([self.rank, self.states, self.states], dim=-1)
        step = functional.softplus(self.step(rank))
        decay = torch.exp(step.unsqueeze(-1) * -self.log_decay.exp())
        driven = (step * u).unsqueeze(-1) * b.unsqueeze(2)
        state = torch.zeros_like(driven[:, 0])
        outputs = []
        for t in range(x.shape[1]):
            state = decay[:, t] * state + driven[:, t]
            outputs.append((state @ c[:, t].unsqueeze(-1)).squeeze(-1))
        y = (torch.stack(outputs, dim=1) + u * self.skip) * functional.silu(gate)
        result: Tensor = x + self.dropout(self.out(y))
        return result


class NeRF(nn.Module):
    """A field of colour and density, rendered along rays, under the squared error of the pixels."""

    def __init__(self, *, width: int, layers: int, frequencies: int, dropout: float) -> None:
        super().__init__()
        coded = 3 + 6 * frequencies
        self.frequencies = frequencies
        self.skip_at = layers // 2
        widths = [coded, *[width] * (layers - 1)]
        self.layers = nn.ModuleList(
            nn.Linear(w + (coded if i == self.skip_at else 0), width) for i, w in enumerate(widths)
        )
        self.density = nn.Linear(width, 1)
        self.feature = nn.Linear(width, width)
        self.view = nn.Linear(width + coded, width // 2)
        self.dropout = dropout_layer(dropout)
        self.colour = nn.Linear(width // 2, 3)

    def _coded(self, x: Tensor) -> Tensor:
        scaled = [x * (2.0**k * math.pi) for k in range(self.frequencies)]
        return torch.cat([x, *(s.sin() for s in scaled), *(s.cos() for s in scaled)], dim=-1)

    def forward(self, origins: Tensor, directions: Tensor, depths: Tensor, pixels: Tensor) -> Tensor:
        """Mean squared error of the rays' colours ``(rays, 3)``, sampled at `depths`, against `pixels`."""
        points = self._coded(origins.unsqueeze(1) + directions.unsqueeze(1) * depths.view(1, -1, 1))
        h = points
        for i, layer in enumerate(self.layers):
            h = functional.relu(layer(torch.cat([h, points], dim=-1) if i == self.skip_at else h))
        density = functional.relu(self.density(h)).squeeze(-1)
        views = self._coded(directions).unsqueeze(1).expand(-1, depths.shape[0], -1)
        seen = functional.relu(self.view(torch.cat([self.feature(h), views], dim=-1)))
        colours = torch.sigmoid(self.colour(self.dropout(seen)))
        opaque = 1 - torch.exp(-density * (depths[1] - depths[0]))
        passed = torch.cumprod(torch.cat([torch.ones_like(opaque[:, :1]), 1 - opaque[:, :-1] + 1e-6], dim=1), dim=1)
        return functional.mse_loss(((opaque * passed).unsqueeze(-1) * colours).sum(dim=1), pixels)


class MessageNetwork(nn.Module):
    """Messages along the edges of a graph, summed at its nodes, under the cross entropy of the nodes."""

    def __init__(self, *, inputs: int, width: int, layers: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.into = nn.Linear(inputs, width)
        self.messages = nn.ModuleList(
            nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width)) for _ in range(layers)
        )
        self.updates = nn.ModuleList(
            nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width)) for _ in range(layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.dropout = dropout_layer(dropout)
        self.head = nn.Linear(width, classes)

    def forward(self, nodes: Tensor, edges: Tensor, labels: Tensor) -> Tensor:
        """Mean cross entropy of the classes of `nodes` ``(nodes, inputs)`` joined by `edges` ``(2, edges)``."""
        x = self.into(nodes)
        for message, update, norm in zip(self.messages, self.updates, self.norms):
            sent = message(torch.cat([x[edges[0]], x[edges[1]]], dim=1))
            received = torch.zeros_like(x).index_add(0, edges[1], sent)
            x = norm(x + self.dropout(update(torch.cat([x, received], dim=1))))
        return functional.cross_entropy(self.head(x), labels)


class ConvNeXtBlock(nn.Module):
    """A 7x7 convolution by channel, and a perceptron at every pixel, around a shortcut."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.by_channel = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 1e-2))
        self.dropout = dropout_layer(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """``x + block(x)`` for x of ``(batch, width, height, width)``."""
        h = self.norm(self.by_channel(x).permute(0, 2, 3, 1))
        h = self.dropout(self.scale * self.narrow(functional.gelu(self.widen(h))))
        return x + h.permute(0, 3, 1, 2)


class ChannelNorm(nn.Module):
    """LayerNorm over the channels of an image."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """`x` with every pixel's channels normalised."""
        normal: Tensor = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return normal


def convnext(*, widths: tuple[int, ...], blocks: tuple[int, ...], classes: int, dropout: float) -> nn.Sequential:
    """A stem by 4, stages of blocks with halvings between them, and a head."""
    layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, stride=4), ChannelNorm(widths[0])]
    for stage, (width, count) in enumerate(zip(widths, blocks)):
        if stage:
            layers += [ChannelNorm(widths[stage - 1]), nn.Conv2d(widths[stage - 1], width, 2, stride=2)]
        layers += [ConvNeXtBlock(width, dropout) for _ in range(count)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))


class TimedBlock(nn.Module):
    """Two 3x3 convolutions with GroupNorm that learn of the time between them, around a shortcut."""

    def __init__(self, channels: int, width: int, time: int, dropout: float) -> None:
        super().__init__()
        groups = min(8, channels // 2)
        self.first = nn.Sequential(nn.GroupNorm(groups, channels), nn.SiLU(), nn.Conv2d(channels, width, 3, padding=1))
        self.time = nn.Linear(time, width)
        self.norm = nn.GroupNorm(min(8, width // 2), width)
        self.dropout = dropout_layer(dropout)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.shortcut = nn.Identity() if channels == width else nn.Conv2d(channels, width, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """``shortcut(x) + block(x, time)``."""
        h = self.first(x) + self.time(time)[:, :, None, None]
        result: Tensor = self.shortcut(x) + self.second(self.dropout(functional.silu(self.norm(h))))
        return result


class PixelAttention(nn.Module):
    """Attention of every pixel to all others, with one head, around a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(min(8, width // 2), width)
        self.qkv = nn.Conv2d(width, 3 * width, 1)
        self.out = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """``x + attention(x)``."""
        q, k, v = (t.flatten(2).mT.unsqueeze(1) for t in self.qkv(self.norm(x)).chunk(3, dim=1))
        mixed = functional.scaled_dot_product_attention(q, k, v)
        result: Tensor = x + self.out(mixed.squeeze(1).mT.reshape(x.shape))
        return result


class DiffusionUNet(nn.Module):
    """A U-Net that learns the noise of an image at a time, under the squared error of the noise."""

    def __init__(self, *, base: int, depth: int, dropout: float) -> None:
        super().__init__()
        widths = [base << level for level in range(depth + 1)]
        time = 4 * base
        self.base = base
        self.time = nn.Sequential(nn.Linear(base, time), nn.SiLU(), nn.Linear(time, time))
        self.into = nn.Conv2d(3, base, 3, padding=1)
        self.down = nn.ModuleList(TimedBlock(c, w, time, dropout) for c, w in zip([base, *widths], widths))
        self.halve = nn.ModuleList(nn.Conv2d(w, w, 3, stride=2, padding=1) for w in widths[:-1])
        self.attention = PixelAttention(widths[-1])
        self.middle = TimedBlock(widths[-1], widths[-1], time, dropout)
        pairs = list(zip(reversed(widths[1:]), reversed(widths[:-1])))
        self.enlarge = nn.ModuleList(nn.Conv2d(above, w, 3, padding=1) for above, w in pairs)
        self.up = nn.ModuleList(TimedBlock(2 * w, w, time, dropout) for _, w in pairs)
        self.head = nn.Sequential(nn.GroupNorm(base // 2, base), nn.SiLU(), nn.Conv2d(base, 3, 3, padding=1))

    def forward(self, noisy: Tensor, times: Tensor, noise: Tensor) -> Tensor:
        """Mean squared error of the noise found in `noisy` at `times` against `noise`."""
        angles = times[:, None] * torch.exp(torch.arange(0, self.base, 2, device=times.device) * (-9.0 / self.base))
        time = self.time(torch.cat([angles.sin(), angles.cos()], dim=1))
        x, skips = self.into(noisy), []
        for level, block in enumerate(self.down):
            x = block(x, time)
            if level < len(self.halve):
                skips.append(x)
                x = self.halve[level](x)
        x = self.middle(self.attention(x), time)
        for enlarge, block in zip(self.enlarge, self.up):
            x = enlarge(functional.interpolate(x, scale_factor=2.0, mode="nearest"))
            x = block(torch.cat([skips.pop(), x], dim=1), time)
        return functional.mse_loss(self.head(x), noise)


class _MambaTokens(nn.Module):
    """Mamba between an embedding and a head."""

    def __init__(self, *, layers: int, width: int, states: int, words: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(MambaBlock(width, states, dropout) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Mean cross entropy of the token behind each of `tokens` against `labels`."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


def build_mamba(tiny: bool, dropout: float) -> Built:
    """Mamba of two layers over 16 tokens."""
    batch, length, width, words = (2, 4, 16, 50) if tiny else (16, 16, 64, 500)
    states = 4 if tiny else 16
    module = _MambaTokens(layers=2, width=width, states=states, words=words, dropout=dropout)
    tokens = torch.randint(words, (2, batch, length))
    return module, {"tokens": tokens[0], "labels": tokens[1]}


def build_nerf(tiny: bool, dropout: float) -> Built:
    """NeRF of eight layers of 128 units, 128 rays of 32 samples."""
    rays, samples, width = (4, 4, 16) if tiny else (128, 32, 128)
    module = NeRF(width=width, layers=4 if tiny else 8, frequencies=2 if tiny else 6, dropout=dropout)
    rays_of = {"origins": torch.randn(rays, 3), "directions": functional.normalize(torch.randn(rays, 3), dim=1)}
    return module, {**rays_of, "depths": torch.linspace(2.0, 6.0, samples), "pixels": torch.rand(rays, 3)}


def build_gnn(tiny: bool, dropout: float) -> Built:
    """Six rounds of messages of 64 numbers between 1,000 nodes along 8,000 edges."""
    nodes, edges, width, layers = (10, 30, 8, 2) if tiny else (1000, 8000, 64, 6)
    module = MessageNetwork(inputs=16, width=width, layers=layers, classes=10, dropout=dropout)
    inputs = {"nodes": torch.randn(nodes, 16), "edges": torch.randint(nodes, (2, edges))}
    return module, {**inputs, "labels": torch.randint(10, (nodes,))}


def build_convnext(tiny: bool, dropout: float) -> Built:
    """ConvNeXt of four stages, from 24 channels, on 96x96 images."""
    if tiny:
        widths, blocks, batch, pixels = (8, 16), (1, 1), 2, 16
    else:
        widths, blocks, batch, pixels = (24, 48, 96, 192), (2, 2, 4, 2), 8, 96
    network = convnext(widths=widths, blocks=blocks, classes=CLASSES, dropout=dropout)
    inputs = {"images": torch.randn(batch, 3, pixels, pixels), "labels": torch.randint(CLASSES, (batch,))}
    return Classifier(network), inputs


def build_diffusion(tiny: bool, dropout: float) -> Built:
    """A diffusion U-Net of three halvings, from 16 channels, on 64x64 images."""
    batch, pixels, base, depth = (2, 8, 4, 1) if tiny else (4, 64, 16, 3)
    module = DiffusionUNet(base=base, depth=depth, dropout=dropout)
    shape = (batch, 3, pixels, pixels)
    return module, {"noisy": torch.randn(shape), "times": torch.rand(batch) * 1000, "noise": torch.randn(shape)}
