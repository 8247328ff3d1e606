"""Small models, a backend that dry-runs what it compiles, and the allocator's own account of a real step."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.compile_fx import compile_fx
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from remat_compiler.costs.workspace import WorkspaceTable
from remat_compiler.dry_run.dry_run import DryRun, dry_run
from remat_compiler.dry_run.emitted_wrapper import GraphRecorder

TABLE = WorkspaceTable()


class DryRunBackend:
    """Compiles with Inductor, or for an FX interpreter, and predicts the step before it returns."""

    def __init__(self, inner: str) -> None:
        self.inner = inner
        self.recorders: list[GraphRecorder] = []
        self.compiled: list[Callable[..., Any]] = []
        self.inputs: list[Sequence[Any]] = []
        self.predictions: list[DryRun] = []

    def __call__(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        with GraphRecorder() as recorder:
            compiled: Callable[..., Any]
            if self.inner == "inductor":
                compiled = cast(Callable[..., Any], compile_fx(module, inputs))
            else:
                compiled = aot_autograd(fw_compiler=interpret, bw_compiler=interpret)(module, inputs)
        self.recorders.append(recorder)
        self.compiled.append(compiled)
        self.inputs.append(inputs)
        self.predictions.append(dry_run(compiled, inputs, recorder.graphs, TABLE))
        return compiled


def interpret(module: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
    def run(args: list[Any]) -> Any:
        return torch.fx.Interpreter(module).boxed_run(args)

    setattr(run, "_boxed_call", True)  # noqa: B010
    return run


@contextmanager
def garbage_left() -> Iterator[None]:
    """Leaves Python's garbage where it is: tensors that others left in cycles would be freed within a measured step."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def peak_of(run: Callable[[], object]) -> int:
    """Peak of the bytes that `run` takes from the CPU allocator."""
    with garbage_left(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        run()
    live = peak = 0
    kineto = record.profiler.kineto_results
    for event in kineto.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


def train_step(compiled: Callable[..., Any], model: nn.Module, inputs: Sequence[Any], autocast: bool = False) -> None:
    """One step without an optimizer; gradients are dropped before, not after it."""
    model.zero_grad(set_to_none=True)
    with torch.autocast("cpu", dtype=torch.bfloat16) if autocast else nullcontext():
        loss = compiled(*inputs)
    loss.backward()


def predicted_and_measured(
    model: nn.Module, inputs: Sequence[Any], inner: str = "inductor", autocast: bool = False, dynamic: bool = False
) -> tuple[DryRun, int]:
    """The prediction made while compiling, and the peak of a later step."""
    torch._dynamo.reset()
    backend = DryRunBackend(inner)
    compiled = torch.compile(model, backend=backend, dynamic=dynamic)
    train_step(compiled, model, inputs, autocast)
    model.zero_grad(set_to_none=True)
    measured = peak_of(lambda: train_step(compiled, model, inputs, autocast))
    (prediction,) = backend.predictions
    return prediction, measured


class Mlp(nn.Module):
    """Linear layers, BatchNorm and dropout."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(dropout), nn.Linear(128, 64), nn.Tanh(),
            nn.Linear(64, 10),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.net(x), torch.zeros(x.shape[0], dtype=torch.long))


class Block(nn.Module):
    """A transformer block."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, 4, width // 4).transpose(1, 2) for part in self.qkv(self.norm_1(x)).split(width, 2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout)
        x = x + F.dropout(self.out(y.transpose(1, 2).reshape(x.shape)), self.dropout)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm_2(x)))), self.dropout)


class Gpt(nn.Module):
    """A small language model with its loss."""

    def __init__(self, layers: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(256, 64), nn.Embedding(64, 64)
        self.blocks = nn.ModuleList([Block(64, dropout) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 256, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits[:, :-1].reshape(-1, 256), tokens[:, 1:].reshape(-1))


class ResidualConv(nn.Module):
    """Convolutions, BatchNorm, a strided shortcut, pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.conv_1, self.norm_1 = nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.conv_2, self.norm_2 = nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32)
        self.shortcut, self.head = nn.Conv2d(16, 32, 1, stride=2), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = x + F.relu(self.norm_1(self.conv_1(x)))
        x = F.max_pool2d(F.relu(self.shortcut(x) + self.norm_2(self.conv_2(x))), 2)
        return F.cross_entropy(self.head(x.mean((2, 3))), torch.zeros(x.shape[0], dtype=torch.long))


class CheckpointedDropout(nn.Module):
    """Blocks that are recomputed with the dropout masks of the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.up, self.down = nn.Linear(64, 64), nn.Linear(64, 256), nn.Linear(256, 64)

    def block(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(F.dropout(F.gelu(self.up(x)), 0.3, True))
        return y

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for _ in range(3):
            x = x + checkpoint(self.block, x, use_reentrant=False)
        return x.pow(2).mean()


class MutatedBuffer(nn.Module):
    """Reads a buffer, then changes it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.buffer: torch.Tensor
        self.register_buffer("buffer", torch.zeros(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        z = y.sin() * 3 + self.buffer.clone()
        self.buffer.add_(z.detach().mean(0))
        loss: torch.Tensor = (z * y.cumsum(0)).mean()
        return loss


class Folding(nn.Module):
    """Windows of a sequence, as ConvBERT takes them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        windows = F.unfold((x @ self.weight).transpose(1, 2)[..., None], kernel_size=(9, 1), padding=(4, 0))
        return windows.transpose(1, 2).mean(-1, keepdim=True).expand(-1, -1, 144).contiguous().sin().sum()


class ReducedLosses(nn.Module):
    """Losses each of whose means keeps the storage of all its terms, as in an autoencoder with a codebook."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x @ self.weight
        losses = F.mse_loss(y, x), F.smooth_l1_loss(y, x[:, :1]), F.soft_margin_loss(y, x.sign())
        return sum(losses, F.binary_cross_entropy(y.sigmoid(), x.sigmoid(), reduction="sum"))


class ImagesInText(nn.Module):
    """Puts rows of one input into the places of the other that a mask chooses, as models of images and text do."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.images = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = (torch.arange(x.shape[1]) % 4 == 1)[:, None].expand_as(x)
        return self.text(x).masked_scatter(chosen, self.images(x[:, 1::4])).sin().square().sum()


class Branch(nn.Module):
    """Takes one of two branches, by its data."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        chosen = torch.cond(y.sum() > 0, lambda y: y.sin(), lambda y: y.cos() + 1, (y,))
        return chosen.mean()  # type: ignore[no-any-return]


class Select(nn.Module):
    """Makes a tensor whose size its data decide."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        return y[y > 0].mean()  # type: ignore[no-any-return]
