"""Programs that few people write, and that train as they do in eager: what they change, return and ask of autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import remat_compiler
from instruments.measure import allocator_events, live_bytes
from remat_compiler.errors import InfeasibleBudget
from remat_compiler.partition import partition

INTERPRETED: list[Any] = [(1.0, "eager"), ("min", "eager")]
EVERYWHERE = [*INTERPRETED, pytest.param(1.0, "inductor", marks=pytest.mark.slow), ("min", "inductor")]


@pytest.fixture(autouse=True)
def anew(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("REMAT_DISABLE_CACHE", "1")
    torch._dynamo.reset()
    remat_compiler.clear_reports()
    torch.manual_seed(0)
    yield
    torch.set_grad_enabled(True)


def compiled(fn: Callable[..., Any], budget: object, inner: str, **options: Any) -> Any:
    given = {"memory_budget": budget, "inner": inner, "on_infeasible": "min", "cost_model": "nominal", **options}
    return torch.compile(fn, backend="remat", options=given, fullgraph=True)


class DoublesState(torch.autograd.Function):
    """A backward that changes an input of the forward which it saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, state: Tensor) -> Tensor:
        ctx.save_for_backward(state)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (state,) = ctx.saved_tensors
        state.mul_(2.0)
        return gradients[0], None


class CountsBackwards(torch.autograd.Function):
    """A backward that changes an input which the forward did not save, and reads another value of it later."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, state: Tensor) -> Tensor:
        ctx.state = state
        return x * state

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        before = gradient * ctx.state.sin()
        ctx.state.add_(1.0)
        return before + gradient * ctx.state, None


@pytest.mark.parametrize(("budget", "inner"), EVERYWHERE)
@pytest.mark.parametrize("operator", [DoublesState, CountsBackwards])
def test_what_the_backward_changes_stays_changed(operator: Any, budget: object, inner: str) -> None:
    def fn(x: Tensor, state: Tensor) -> Tensor:
        return operator.apply(x.sin(), state).exp()

    found = []
    for run in (fn, compiled(fn, budget, inner)):
        x, state = torch.linspace(0, 1, 6, requires_grad=True), torch.full((6,), 0.5)
        for _ in range(2):
            run(x, state).sum().backward()
        found.append((x.grad, state))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize(("budget", "inner"), EVERYWHERE)
def test_gradients_left_off_for_the_caller(budget: object, inner: str) -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * x
        torch.set_grad_enabled(False)
        return y.clone(), y

    x = torch.ones(3, requires_grad=True)
    copy, y = compiled(fn, budget, inner)(x)
    assert not torch.is_grad_enabled()
    assert not copy.requires_grad
    assert y.grad_fn is not None
    torch.set_grad_enabled(True)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0] * 3


@pytest.mark.parametrize("budget", [1.0, "min"])
def test_outputs_that_are_copies_share_no_memory(budget: object) -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        product, square = x @ x, x * x
        return product.clone(), product, square.clone(), square, x.clone()

    x = torch.rand(3, 3, requires_grad=True)
    outputs = compiled(fn, budget, "inductor")(x)
    assert len({one.untyped_storage().data_ptr() for one in (*outputs, x)}) == len(outputs) + 1


@pytest.mark.parametrize(("budget", "inner"), EVERYWHERE)
def test_an_activation_changed_in_place(budget: object, inner: str) -> None:
    stem = nn.Linear(8, 8)
    block = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 8), nn.ReLU(inplace=True))
    x, found = torch.randn(4, 8), []
    for run in (block, compiled(block, budget, inner)):
        stem.zero_grad()
        run(stem(x)).sum().backward()
        found.append(stem.weight.grad)
    torch.testing.assert_close(found[1], found[0])
    (report,) = remat_compiler.reports()
    assert report.checked_peak_bytes is not None


@pytest.mark.parametrize("how", ["retain_graph", "create_graph"])
@pytest.mark.parametrize(("budget", "inner"), EVERYWHERE)
def test_a_backward_that_runs_twice(how: str, budget: object, inner: str) -> None:
    body = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.GELU())])
    first, second = nn.Linear(16, 4), nn.Linear(16, 4)

    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        y = body(x)
        return first(y).sin().sum(), second(y).exp().sum()

    x, found = torch.randn(8, 16), []
    weights = [*body.parameters(), *first.parameters()]
    for run in (fn, compiled(fn, budget, inner)):
        one, two = run(x)
        once = torch.autograd.grad(one, weights, **{how: True})
        again = torch.autograd.grad(one, weights, retain_graph=True)
        both = torch.autograd.grad(one + two, weights)
        found.append([gradient.detach() for gradient in (*once, *again, *both)])
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize(("budget", "inner"), EVERYWHERE)
def test_sizes_read_from_data(budget: object, inner: str) -> None:
    def fn(x: Tensor, sizes: Tensor) -> Tensor:
        parts = torch.split(x.sin(), sizes.tolist())
        return parts[0].exp().sum() + (parts[1] * (sizes * 2).sum().item()).cos().sum()

    found = []
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        for run in (fn, compiled(fn, budget, inner)):
            for sizes in ((7, 16, 9), (1, 2, 29)):
                x = torch.linspace(0, 1, 32, dtype=torch.float64, requires_grad=True)
                run(x, torch.tensor(sizes)).backward()
                found.append(x.grad)
    torch.testing.assert_close(found[2:], found[:2])


@pytest.mark.parametrize(("budget", "inner"), EVERYWHERE)
def test_dropout_in_a_checkpoint_with_the_random_numbers_of_eager(budget: object, inner: str) -> None:
    layer = nn.Linear(10, 10)

    def fn(x: Tensor) -> Any:
        return checkpoint(lambda v: F.dropout(layer(v), 0.5).sin(), x, use_reentrant=False)

    x, found = torch.randn(10, 10), []
    with torch._inductor.config.patch(fallback_random=True):
        for run in (fn, compiled(fn, budget, inner)):
            layer.zero_grad()
            torch.manual_seed(3)
            run(x).sum().backward()
            found.append((layer.weight.grad, torch.get_rng_state()))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("budget", [1.0, "min"])
def test_batch_norm_of_a_transposed_input_under_the_interpreter(budget: object) -> None:
    norm, out = nn.BatchNorm1d(16), nn.Linear(16, 16)

    def fn(x: Tensor) -> Tensor:
        x = norm(x.transpose(1, 2)).transpose(1, 2)
        return out(x).view(-1, 4).square().mean()

    found = []
    for run in (fn, compiled(fn, budget, "eager")):
        torch.manual_seed(1)
        x = torch.randn(4, 8, 16, requires_grad=True)
        run(x).backward()
        found.append(x.grad)
    torch.testing.assert_close(found[1], found[0])


def test_an_unused_random_number_does_not_refuse_the_whole_budget() -> None:
    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        F.dropout(x / (x.abs() + 1), 0.3)
        return F.dropout(x / (x.abs() + 1), 0.5).cumsum(-1) * 0.3, x[:, 0] @ w

    x, w = torch.randn(3, 5, 4), torch.randn(4, 4, requires_grad=True)
    with torch._inductor.config.patch(fallback_random=True):
        compiled(fn, 1.0, "eager", on_infeasible="error")(x, w)[1].sum().backward()
    (report,) = remat_compiler.reports()
    assert report.checked_peak_bytes == report.budget_bytes == report.peak_before_bytes


@pytest.mark.parametrize("budget", [20_000, 0.3])
def test_where_the_emitted_peak_is_unknown_the_simulated_one_decides(budget: object) -> None:
    embed = nn.Embedding(1000, 64, sparse=True)  # a sparse gradient has no storage to be counted
    layers = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.GELU())])
    step = compiled(lambda i: layers(embed(i)).square().mean(), budget, "eager", on_infeasible="error")
    with pytest.raises(InfeasibleBudget):
        step(torch.arange(512).view(8, 64))


@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_where_planning_fails_the_graph_trains_as_without_a_budget(
    inner: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("made up")

    monkeypatch.setattr(partition, "lower", broken)
    layers = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.Tanh())])
    x = torch.randn(64, 32)
    step = compiled(lambda v: layers(v).sum(), 20_000, inner)
    step(x).backward()
    gradient = layers[0].weight.grad
    assert "planning failed (KeyError: 'made up')" in caplog.text
    assert "no plan fits memory_budget=19.5 KiB" in caplog.text
    layers.zero_grad()
    layers(x).sum().backward()
    torch.testing.assert_close(gradient, layers[0].weight.grad)
    torch._dynamo.reset()
    with pytest.raises(InfeasibleBudget, match="KeyError: 'made up'"):
        compiled(lambda v: layers(v).sum(), 20_000, inner, on_infeasible="error")(x)


def test_an_input_that_is_changed_behind_its_graph_is_named_in_the_error() -> None:
    """The indices are made anew from an input that holds other numbers by then."""
    table = nn.Parameter(torch.randn(20, 32))

    def run(x: Tensor, y: Tensor) -> Tensor:
        found = F.embedding(x % 20, table)
        scaled = y / (y.norm(dim=-1, keepdim=True) + 1)
        torch._dynamo.graph_break()
        x.add_(1)
        return found.sin().sum() + scaled.sum()

    compiled = torch.compile(run, backend="remat", options={"memory_budget": "min", "inner": "eager"})
    y = torch.randn(48, 32, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation.* give it a clone of that input"):
        compiled(torch.randint(0, 20, (48,)), y).backward()


def test_two_calls_with_one_input_that_eager_made(caplog: pytest.LogCaptureFixture) -> None:
    """Autograd adds up the gradients of the input: the first one waits until the second is there."""
    weight = nn.Parameter(torch.randn(32, 32))
    call = compiled(lambda x: torch.tanh(x @ weight).amax(-1).sum(), "1MiB", "eager")
    leaf = torch.randn(256, 32, requires_grad=True)

    def step() -> None:
        x = leaf * 2
        (call(x) + call(x)).backward()

    for _ in range(2):
        step()
    leaf.grad = weight.grad = None
    measured = max(live_bytes(allocator_events(step)))
    (report,) = remat_compiler.reports()
    assert report.step is not None
    assert report.step.peak_bytes is not None
    # Beside the graph: the input itself, and its sum of two losses; but not the gradients of the steps before.
    predicted = report.step.peak_bytes - report.step.gradient_bytes
    assert 0 <= measured - (predicted + leaf.nbytes) <= 64
