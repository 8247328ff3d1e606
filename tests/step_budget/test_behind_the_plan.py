"""What operators left to eager take behind, or around, planned graphs is told once if the budget is exceeded by it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import remat_compiler.backend  # noqa: F401 - registers the backend
from instruments.measure import allocator_events, live_bytes

Told = Callable[[], list[str]]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    """The warnings about eager operators."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    return lambda: [text for text in caplog.messages if "left to eager" in text]


def compiled(model: Any, budget: str | float) -> Any:
    options = {"memory_budget": budget, "inner": "eager", "cost_model": "nominal"}
    return torch.compile(model, backend="remat", options=options)


def train(step: Callable[[], torch.Tensor], *models: nn.Module, steps: int = 4) -> None:
    for _ in range(steps):
        for model in models:
            model.zero_grad()
        step().backward()


def dense(width: int = 64) -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, width))


# A megabyte of logits, and as much each for their logarithms and two gradients of them.
@pytest.mark.parametrize(("budget", "times"), [("2600KiB", 1), ("3000KiB", 1), ("3600KiB", 0), ("min", 1)])
def test_a_loss_left_to_eager_is_told_of_with_its_bytes(budget: str, times: int, told: Told) -> None:
    model, x, classes = dense(1024), torch.randn(256, 64), torch.randint(0, 1024, (256,))
    step = compiled(model, budget)
    train(lambda: F.cross_entropy(step(x), classes), model)
    assert len(told()) == times
    for text in told():
        # The logits are gone: only what the graph saved is held.
        assert "behind the planned graphs take 3.0 MiB" in text
        assert "beside 128.0 KiB" in text


def test_losses_in_chunks_and_recurrent_layers_behind_are_told_of(told: Told) -> None:
    model, head, x, classes = dense(), nn.Linear(64, 1024), torch.randn(256, 64), torch.randint(0, 1024, (64,))
    step = compiled(model, "1MiB")

    def in_chunks() -> torch.Tensor:
        return torch.stack([F.cross_entropy(head(part), classes) for part in step(x).split(64)]).sum()

    train(in_chunks, model, head)
    assert len(told()) == 1

    front, recurrent = nn.Sequential(nn.Conv1d(8, 32, 3, padding=1), nn.ReLU()), nn.GRU(32, 64, batch_first=True)
    step, signal = compiled(front, "1200KiB"), torch.randn(16, 8, 100)

    def through_gru() -> torch.Tensor:
        lengths = torch.full((16,), 100)
        packed = nn.utils.rnn.pack_padded_sequence(step(signal).transpose(1, 2), lengths, batch_first=True)
        return recurrent(packed)[0].data.square().mean()

    train(through_gru, front, recurrent)
    assert len(told()) == 2


@pytest.mark.parametrize(("budget", "times"), [("1MiB", 1), ("2MiB", 0)])
def test_eager_work_is_told_of_where_nothing_of_the_planned_graphs_is_trained(
    budget: str, times: int, told: Told
) -> None:
    """Their results are gone as the backward begins: all that it runs over is eager's."""
    model, x = dense(), torch.randn(256, 64)
    step, scale = compiled(model, budget), torch.full((), 0.5, requires_grad=True)

    def of_features() -> torch.Tensor:
        features = step(x).detach()
        for _ in range(20):
            features = (features * scale).tanh()
        return features.sum()

    train(of_features, model)
    assert len(told()) == times


def test_a_custom_function_behind_counts_what_it_saves(told: Told) -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(*(x + i for i in range(8)))
            return x.mean()

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            return gradients[0] * torch.ones_like(ctx.saved_tensors[0])

    model, x = dense(), torch.randn(256, 64)
    step = compiled(model, "400KiB")
    train(lambda: Scaled.apply(step(x)), model)
    # They have no node, but are none of anybody's: autograd holds them.
    assert len(told()) == 1


@pytest.mark.parametrize("late", [0, 20])
def test_eager_work_that_begins_after_some_steps_is_told_of(late: int, told: Told) -> None:
    model, x = dense(), torch.randn(256, 64)
    step, heavy = compiled(model, "500KiB"), False

    def loss() -> torch.Tensor:
        found = step(x)
        for _ in range(8 if heavy else 0):
            found = found.tanh()
        return found.sum()

    train(loss, model, steps=late)
    assert not told()
    heavy = True
    train(loss, model)
    assert len(told()) == 1


def test_what_a_running_backward_holds_counts_for_reentrant_checkpoints(told: Told) -> None:
    blocks = nn.ModuleList(dense() for _ in range(12))
    x = torch.randn(512, 64, requires_grad=True)
    made = [compiled(block, "1500KiB") for block in blocks]

    def step() -> torch.Tensor:
        h = x * 1
        for block in made:
            h = h + checkpoint(block, h, use_reentrant=True)
        return h.sum()

    train(step, blocks)
    found = re.findall(r"hold or return ([\d.]+) MiB for the backward", " ".join(told()))
    # Twelve inputs of blocks, 128 KiB each.
    assert found[:1] == ["1.5"]


class _Added(torch.autograd.Function):
    """A reversible block: it keeps its result, and runs itself again in the backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, block: Any) -> torch.Tensor:
        ctx.block = block
        with torch.no_grad():
            result = x + block(x)
        ctx.save_for_backward(x.detach())
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            (x + ctx.block(x)).backward(gradients[0])
        return x.grad, None


def reversible(block: Any, h: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = _Added.apply(h, block)
    return result


def after_an_activation(block: Any, h: torch.Tensor) -> torch.Tensor:
    """Eager work in the region, too."""
    return h + checkpoint(lambda h: block(torch.tanh(h)), h, use_reentrant=True)


def in_a_region_of_its_own(block: Any, h: torch.Tensor) -> torch.Tensor:
    return h + checkpoint(lambda h: checkpoint(block, h, use_reentrant=True), h, use_reentrant=True)


@pytest.mark.parametrize(("budget", "times"), [("1200KiB", 1), ("4MiB", 0)])
@pytest.mark.parametrize("around", [reversible, after_an_activation, in_a_region_of_its_own])
def test_blocks_that_run_within_a_backward_are_told_of_beside_what_that_holds(
    around: Callable[[Any, torch.Tensor], torch.Tensor], budget: str, times: int, told: Told
) -> None:
    """And their gradients are those of eager."""
    blocks = nn.ModuleList(dense() for _ in range(12))
    x = torch.randn(512, 64, requires_grad=True)

    def step(calls: Any) -> torch.Tensor:
        h = x * 1
        for call in calls:
            h = around(call, h)
        return h.square().sum()

    train(lambda: step(blocks), blocks, steps=1)
    expected = [p.grad for p in blocks.parameters()]
    made = [compiled(block, budget) for block in blocks]
    train(lambda: step(made), blocks)
    torch.testing.assert_close([p.grad for p in blocks.parameters()], expected, rtol=1e-4, atol=1e-4)
    assert (len(told()) > 0) == (times > 0)


class Interrupted(nn.Module):
    """Two graphs, between which something may go wrong; Dynamo then leaves the second part to eager for good."""

    def __init__(self, how: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        layers = [[m for _ in range(6) for m in (nn.Linear(64, 64), nn.GELU())] for _ in "ab"]
        self.first, self.last = (nn.Sequential(*one) for one in layers)
        self.how, self.fails = how, False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        torch._dynamo.graph_break()
        if self.fails:
            self.how(x)
        return self.last(x).pow(2).mean()


def bad_batch(x: torch.Tensor) -> None:
    raise ValueError("bad batch")


@torch._dynamo.disable
def checked(x: torch.Tensor) -> None:
    raise FloatingPointError("not finite")


def of_torch(x: torch.Tensor) -> torch.Tensor:
    return x @ torch.ones(3, 3)


def looked_up(x: torch.Tensor) -> object:
    return {"train": 1}[f"{len(x)} rows"]


@pytest.mark.parametrize("fails", [(1,), (0,), (2, 3)], ids=str)
@pytest.mark.parametrize("how", [bad_batch, checked, of_torch, looked_up])
def test_a_step_over_its_budget_after_an_exception_is_told_of(
    how: Callable[[torch.Tensor], object], fails: tuple[int, ...], caplog: pytest.LogCaptureFixture, told: Told
) -> None:
    """Whatever is left to eager afterwards, the budget is kept or that is said; and steps train on."""
    model, x, budget = Interrupted(how), torch.randn(512, 64), 2_800_000
    step, peaks = compiled(model, budget), []

    def once() -> None:
        step(x).backward()

    for i in range(9):
        model.fails = i in fails
        model.zero_grad()
        if model.fails:
            with pytest.raises(Exception, match=r"bad batch|not finite|same reduction dim|rows"):
                once()
        elif i < 7:
            once()
        else:
            peaks.append(max(live_bytes(allocator_events(once))))
    assert max(peaks) <= budget or any("budget" in text for text in caplog.messages)
    found = [p.grad for p in model.parameters()]
    model.zero_grad()
    model(x).backward()
    torch.testing.assert_close(found, [p.grad for p in model.parameters()], rtol=1e-4, atol=1e-6)


def once_more(x: torch.Tensor) -> torch.Tensor:
    """As much again for each call, computed again in the backward."""
    for _ in range(10):
        x = x.sin()
    return x


@pytest.mark.parametrize(("budget", "times"), [("600KiB", 1), ("min", 1), ("1MiB", 0)])
@pytest.mark.parametrize("in_front", [True, False])
def test_regions_that_eager_computes_again_beside_the_graphs_are_told_of(
    in_front: bool, budget: str, times: int, told: Told
) -> None:
    model, x = dense(), torch.randn(256, 64)
    step = compiled(model, budget)

    def loss() -> torch.Tensor:
        if in_front:
            return step(checkpoint(once_more, x.requires_grad_(), use_reentrant=False)).sum()
        return checkpoint(once_more, step(x), use_reentrant=False).sum()

    train(loss, model)
    assert len(told()) == times
    # In front, the result of the region is held by the graph, too, which a part tells of first.
    said = (
        ("what is computed again take", "hold or return 64.0 KiB") if in_front else ("behind the planned graphs take",)
    )
    assert all(any(one in text for one in said) for text in told())


def test_a_backward_is_measured_beside_graphs_of_steps_that_keep_their_budget(told: Told) -> None:
    """What the graph holds is freed as the backward runs: that is not counted on top of what it takes."""
    model, x = dense(), torch.randn(256, 64, requires_grad=True)
    step = compiled(model, 1.0)
    train(lambda: step(x * 2).sin().sum(), model, steps=6)
    assert not told()
