"""One budget for every size: the same numbers as eager, and no peak above it, in whatever order the sizes come."""

from __future__ import annotations

import math
import random
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import remat_compiler
from dry_run.steps import peak_of
from end_to_end.compiling import compile_with
from remat_compiler import torch_compat
from remat_compiler.dynamic_shapes.dispatch import Dispatch
from remat_compiler.dynamic_shapes.variant_maker import VariantMaker
from remat_compiler.dynamic_shapes.variant_store import LARGER_SIZES
from remat_compiler.errors import InfeasibleBudget, UnservedSizes

WIDTH = 24
AT_ONCE = 1e-6
"""Part of its compilation that a better variant has to save where one is to be compiled as soon as it is faster."""


class Encoder(nn.Module):
    """Attention with dropout, batch normalisation and a residual stream."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))
        self.norm = nn.ModuleList(nn.BatchNorm1d(WIDTH) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for qkv, out, norm in zip(self.qkv, self.out, self.norm):
            q, k, v = qkv(x).chunk(3, -1)
            mixed = F.dropout(torch.softmax(q @ k.transpose(-1, -2), -1), 0.1, self.training) @ v
            x = norm((x + F.gelu(out(mixed))).flatten(0, 1)).view_as(x)
        return x.square().mean()


def batch(length: int) -> Tensor:
    """An input whose length changes."""
    x = torch.randn(2, length, WIDTH)
    torch._dynamo.mark_dynamic(x, 1)
    return x


def results(model: nn.Module, call: Any, x: Tensor) -> dict[str, Tensor]:
    """Loss, gradients, buffers and random state of a step."""
    model.zero_grad(set_to_none=True)
    loss = call(x)
    loss.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), "state": torch.get_rng_state(), **found, **dict(model.named_buffers())}


def differing(model: nn.Module, compiled: Any, x: Tensor, seed: int) -> list[str]:
    """What a compiled step leaves behind otherwise than eager."""
    state = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(seed)
    planned = {name: value.clone() for name, value in results(model, compiled, x).items()}
    model.load_state_dict(state)
    torch.manual_seed(seed)
    eager = results(model, model, x)
    return [name for name in eager if not torch.equal(eager[name], planned[name])]


def unbudgeted_peak(model: nn.Module, length: int) -> int:
    """Peak of a step in eager."""
    x = batch(length)
    return peak_of(lambda: results(model, model, x))


def test_equal_to_eager_while_variants_switch(made: list[Dispatch], monkeypatch: pytest.MonkeyPatch) -> None:
    """A random sequence of lengths, short ones without recomputation and long ones with much."""
    monkeypatch.setattr(VariantMaker, "pays", AT_ONCE)
    rng = random.Random(5)
    model = Encoder(3)
    budget = unbudgeted_peak(model, 60)
    compiled = compile_with(model, None, memory_budget=budget, on_infeasible="error")
    for seed, length in enumerate([20, *(rng.randint(8, 110) for _ in range(24))]):
        assert differing(model, compiled, batch(length), seed) == []
    (one,) = made
    used = {use.variant.label for use in one.uses}
    assert len(used) >= 3, used
    assert {use.variant.added == 0 for use in one.uses} == {True, False}
    assert 2 < len(one.variants) <= 6
    reports = remat_compiler.reports()
    assert len(reports) == len(one.variants)
    assert all("a variant of the graph, planned for x.shape[1] = " in r.notes[-1] for r in reports[1:])


@pytest.mark.parametrize(
    ("pays", "estimator"),
    [
        (1.0, "symbolic"),
        (math.inf, "symbolic"),
        pytest.param(AT_ONCE, "symbolic", marks=pytest.mark.slow),
        pytest.param(1.0, "quadratic", marks=pytest.mark.slow),
    ],
)
def test_no_size_ever_exceeds_the_budget(
    pays: float, estimator: str, made: list[Dispatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured by the allocator at every length, the first step of each included."""
    monkeypatch.setattr(VariantMaker, "pays", pays)
    model = Encoder()
    budget = unbudgeted_peak(model, 50)
    compiled = compile_with(model, None, memory_budget=budget, on_infeasible="error", estimator=estimator)
    compiled(batch(20)).backward()
    compiled(batch(21)).backward()
    (one,) = made
    measured = {}
    for length in random.Random(3).sample(range(8, 90), 24):
        x = batch(length)
        one.prepare((length,))
        model.zero_grad(set_to_none=True)
        measured[length] = peak_of(lambda x=x: compiled(x).backward())  # type: ignore[misc]
    assert max(measured.values()) <= budget
    for use in one.uses:
        length = use.sizes[0]
        if length in measured:
            assert measured[length] <= (use.variant.needed_bytes(use.sizes, one.allowance) or 0) <= budget
    assert len(made) == 1, "Dynamo compiled again"


@pytest.mark.slow
def test_two_models_that_train_and_evaluate_in_turn(made: list[Dispatch], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VariantMaker, "pays", AT_ONCE)
    models = [Encoder(2), Encoder(2)]
    torch._dynamo.reset()
    budgets = [unbudgeted_peak(models[0], 40), unbudgeted_peak(models[1], 35)]
    calls = []
    for model, budget in zip(models, budgets):
        options = {"memory_budget": budget, "inner": "eager", "max_slowdown": None}
        calls.append(torch.compile(model, backend=partial(remat_compiler.backend.remat, options=options)))
    rng = random.Random(11)
    for seed in range(16):
        model, compiled = models[seed % 2], calls[seed % 2]
        x = batch(rng.randint(8, 60))
        model.train()
        assert differing(model, compiled, x, seed) == []
        model.eval()
        with torch.no_grad():
            assert torch.allclose(compiled(x), model(x))
    assert len(made) == 2


@pytest.mark.slow
def test_a_length_that_cannot_fit_is_refused_and_others_go_on(made: list[Dispatch]) -> None:
    model = Encoder()
    budget = unbudgeted_peak(model, 30)
    compiled = compile_with(model, None, memory_budget=budget, on_infeasible="error", max_slowdown=2.0)
    assert differing(model, compiled, batch(16), 1) == []
    messages = []
    for _ in range(2):
        with pytest.raises(InfeasibleBudget, match="smallest") as refused:
            compiled(batch(400))
        messages.append(str(refused.value))
    assert messages[0] == messages[1]
    kept = made[0].provider._refused  # type: ignore[attr-defined]
    assert [error.__traceback__ for error in kept.values()] == [None], "it holds on to the step that failed"
    assert differing(model, compiled, batch(28), 2) == []
    assert differing(model, compiled, batch(34), 3) == []
    assert len(made) == 1


def test_a_length_that_cannot_fit_takes_the_smallest_peak(
    made: list[Dispatch], caplog: pytest.LogCaptureFixture
) -> None:
    model = Encoder()
    compiled = compile_with(model, None, memory_budget=unbudgeted_peak(model, 30), on_infeasible="min")
    lengths = [16, 400, 410, 420, 395, 390, 385, 400, 20]
    for seed, length in enumerate(lengths):
        assert differing(model, compiled, batch(length), seed) == []
    (one,) = made
    assert len(one.variants) <= 3, "each such length was compiled for"
    assert "no plan fits" in caplog.text


@pytest.mark.slow
def test_what_is_made_for_a_refused_length_is_kept(made: list[Dispatch]) -> None:
    model = Encoder()
    budget = unbudgeted_peak(model, 30)
    compiled = compile_with(model, None, memory_budget=budget, on_infeasible="error", max_slowdown=2.0)
    compiled(batch(16)).backward()
    for _ in range(2):
        with pytest.raises(InfeasibleBudget):
            compiled(batch(300))
    (one,) = made
    assert [v.label for v in one.variants] == ["first"]
    assert differing(model, compiled, batch(36), 3) == []
    assert [v.label for v in one.variants][:2] == ["first", LARGER_SIZES]


def test_what_compilers_assume_of_sizes_is_kept_to(made: list[Dispatch], monkeypatch: pytest.MonkeyPatch) -> None:
    """A variant whose conditions do not hold at the sizes of a call is not run there."""
    model = Encoder()
    compiled = compile_with(model, None, memory_budget=unbudgeted_peak(model, 40), on_infeasible="error")
    compiled(batch(20)).backward()
    original = torch_compat.LaterAssumptions.conditions
    monkeypatch.setattr(
        torch_compat.LaterAssumptions,
        "conditions",
        lambda self, symbols: (*(original(self, symbols) or ()), f"{next(iter(symbols))} < 50"),
    )
    assert differing(model, compiled, batch(45), 1) == []
    for _ in range(2):
        with pytest.raises(UnservedSizes, match=r"x\.shape\[1\] = 60"):
            compiled(batch(60))
    assert differing(model, compiled, batch(46), 2) == []


def test_a_planner_without_a_plan_says_what_is_reachable(made: list[Dispatch]) -> None:
    model = Encoder()
    budget = unbudgeted_peak(model, 40)
    compiled = compile_with(model, None, memory_budget=budget, on_infeasible="error", planner="min_cut")
    compiled(batch(20)).backward()
    with pytest.raises(InfeasibleBudget, match="smallest reachable peak"):
        compiled(batch(90))


def test_numbers_that_are_no_sizes(made: list[Dispatch]) -> None:
    """A number that changes from call to call may be negative, and decides no bytes."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))

    def step(x: Tensor, number: int) -> Tensor:
        return model(x).mul(number).square().mean()

    torch._dynamo.reset()
    options = {"memory_budget": "1MiB", "inner": "eager"}
    compiled = torch.compile(step, backend=partial(remat_compiler.backend.remat, options=options))
    x = torch.randn(5, 8)
    for number in (-3, -4, 7, -5):
        assert torch.equal(compiled(x, number), step(x, number))
        compiled(x, number).backward()


@pytest.mark.parametrize("read", [lambda x, r: x * r, lambda x, r: torch.where(x > r, x, 0.1)])
def test_a_float_that_changes_while_variants_are_compiled(
    read: Any, made: list[Dispatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later variants find the float's symbol, by whichever way the graph reads it."""
    monkeypatch.setattr(VariantMaker, "pays", AT_ONCE)
    layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    class Warmed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.rate = layers, 0.5

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = F.gelu(read(layer(x), self.rate))
            return x.square().mean()

    model = Warmed()
    budget = int(0.8 * unbudgeted_peak(model, 60))
    compiled = compile_with(model, None, memory_budget=budget, on_infeasible="min")
    for number, length in enumerate([20, 40, 60, 50, 90, 30]):
        model.rate = 0.1 + number / 10
        assert differing(model, compiled, batch(length), number) == []
    assert any(len(one.variants) > 1 for one in made)


def test_lengths_that_fit_cost_nothing(made: list[Dispatch]) -> None:
    """Inductor's own partition, and no other variant."""
    model = Encoder(2)
    torch._dynamo.reset()
    options = {"memory_budget": "1GiB"}
    compiled = torch.compile(model, backend=partial(remat_compiler.backend.remat, options=options))
    for length in (8, 30, 12, 80):
        loss = compiled(batch(length))
        loss.backward()
        assert torch.isfinite(loss)
    (one,) = made
    assert [variant.added for variant in one.variants] == [0.0]
    assert remat_compiler.reports()[0].notes[0].startswith("the step fits")


def test_dynamo_does_not_give_up_on_static_sizes(made: list[Dispatch], caplog: pytest.LogCaptureFixture) -> None:
    """With ``dynamic=False`` the last compilation that Dynamo makes serves all sizes that are still to come."""
    model = Encoder(1)
    budget = unbudgeted_peak(model, 60)
    calls = []

    def backend(gm: Any, inputs: Any) -> Any:
        calls.append(gm)
        return remat_compiler.backend.remat(gm, inputs, options={"memory_budget": budget, "inner": "eager"})

    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend, dynamic=False)
    with torch._dynamo.config.patch(recompile_limit=4):
        for length in range(20, 32):
            x = torch.randn(2, length, WIDTH)
            assert differing(model, compiled, x, length) == []
            model.zero_grad()
            assert peak_of(lambda x=x: compiled(x).backward()) <= budget  # type: ignore[misc]
    assert len(calls) == 4
    assert len(made) == 1
    other_calls: list[Any] = []

    def other_backend(gm: Any, inputs: Any) -> Any:
        other_calls.append(tuple(inputs[0].shape))
        return gm

    def forward(x: Tensor) -> Tensor:
        return x.sum()

    other = torch.compile(forward, backend=other_backend, dynamic=False)
    for length in (3, 4):
        other(torch.randn(length))
    assert other_calls == [(3,), (4,)], "an input of the same name in another function was taken to be changing"
    assert caplog.text.count("sizes of L['x'] changed in 3 compilations") == 1


def test_people_are_told_when_dynamo_will_give_up(made: list[Dispatch], caplog: pytest.LogCaptureFixture) -> None:
    """What changes is no size of an input, so nothing can be declared to be changing."""
    model, scale = nn.Linear(4, 4), [0]
    torch._dynamo.reset()

    def step(x: Tensor) -> Tensor:
        return model(x).mul(scale[0]).sum()

    compiled = torch.compile(step, backend=partial(remat_compiler.backend.remat, options={"inner": "eager"}))
    with torch._dynamo.config.patch(recompile_limit=2, automatic_dynamic_shapes=False):
        for scale[0] in (1, 2):
            compiled(torch.randn(3, 4)).backward()
    assert caplog.text.count("this was compilation 2 of one function") == 1
