"""Steps whose values lie in arenas: the same numbers to the bit, the same peak, whatever else holds them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compiler
from end_to_end.compiling import compile_with
from measure import allocator_events, live_bytes

OPTIONS: dict[str, Any] = {"cost_model": "nominal", "inner": "inductor", "on_infeasible": "error"}


class Layers(nn.Module):
    """Layers with dropout and normalization; returns its loss, and a value inside that the caller may keep."""

    def __init__(self, depth: int = 5) -> None:
        super().__init__()
        self.linear = nn.ModuleList(nn.Linear(64, 64) for _ in range(depth))
        self.norm = nn.LayerNorm(64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for linear in self.linear:
            x = x + nn.functional.dropout(torch.softmax(linear(self.norm(x)), -1), 0.2)
        return x.square().mean(), torch.sin(x).sum(-1)


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("REMAT_DISABLE_CACHE", "1")
    before = torch.get_num_threads()
    # Sums by several threads may differ from run to run.
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="module")
def _let_go() -> Iterator[None]:
    yield
    compiled.cache_clear()


def both() -> tuple[Any, Any, nn.Module, nn.Module]:
    """The calls and models of `compiled`, without gradients."""
    call, placed, plain, planned, _ = compiled()
    for model in (plain, planned):
        model.zero_grad()
    return call, placed, plain, planned


@cache
def compiled() -> tuple[Any, Any, nn.Module, nn.Module, Any]:
    """The same model compiled without and with arenas, once for all tests, and the report; asserts that there are some.

    No fixture of the file: it is to be compiled among the steps of one test.
    """
    torch.manual_seed(0)
    plain, planned = Layers(), Layers()
    planned.load_state_dict(plain.state_dict())
    x, calls = torch.randn(512, 64), []
    torch._dynamo.reset()
    for model, layout in ((plain, "plain"), (planned, "planned")):
        given = {**OPTIONS, "memory_budget": 0.5, "layout": layout}
        call = torch.compile(model, backend="remat", options=given, dynamic=False)
        call(x)[0].backward()
        model.zero_grad()
        calls.append(call)
    report = remat_compiler.reports()[-1]
    assert report.arena_bytes
    assert 0 < report.covered_percent <= 100
    return (*calls, plain, planned, report)


def same(plain: nn.Module, planned: nn.Module) -> bool:
    pairs = zip(plain.parameters(), planned.parameters())
    return all(a.grad is not None and b.grad is not None and torch.equal(a.grad, b.grad) for a, b in pairs)


def test_training_is_the_same_to_the_bit_and_the_peak_as_foretold() -> None:
    call, placed, plain, planned = both()
    kept = []
    for seed in range(3):
        x = torch.randn(512, 64)
        results = []
        for run in (call, placed):
            torch.manual_seed(seed)
            loss, inside = run(x)
            loss.backward()  # gradients add up over the steps
            results.append((loss.detach(), inside))
        assert all(torch.equal(a, b) for a, b in zip(*results))
        kept.append([(value, value.clone()) for value in results[1]])
        assert same(plain, planned)
    # What the caller held all the time is what it was.
    assert all(torch.equal(value, copy) for step in kept for value, copy in step)
    kept.clear()
    results.clear()
    report = compiled()[-1]

    def step() -> object:
        planned.zero_grad()
        results = placed(x)
        results[0].backward()
        return results

    step()
    gc.collect()
    assert max(live_bytes(allocator_events(step))) == report.peak_bytes <= (report.budget_bytes or 0)


def test_a_graph_that_is_kept_runs_backward_again() -> None:
    call, placed, plain, planned = both()
    x = torch.randn(512, 64)
    for run in (call, placed):
        torch.manual_seed(1)
        loss, _ = run(x)
        for _ in range(2):
            loss.backward(retain_graph=True)
        loss.backward()
    assert same(plain, planned)


@pytest.mark.parametrize("order", ["in turn", "in reverse"])
def test_several_forwards_under_way_have_their_own_arenas(order: str) -> None:
    call, placed, plain, planned = both()
    batches = [torch.randn(512, 64) for _ in range(3)]
    for run in (call, placed):
        torch.manual_seed(2)
        losses = [run(x)[0] for x in batches]
        if order == "in reverse":
            losses.reverse()
        del losses[1]  # its backward never runs
        for loss in losses:
            loss.backward()
    assert same(plain, planned)


def test_hooks_may_replace_what_is_saved() -> None:
    call, placed, plain, planned = both()
    x = torch.randn(512, 64)
    for pack in (lambda t: t.clone(), lambda t: t):
        for run in (call, placed):
            torch.manual_seed(3)
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
                loss, _ = run(x)
            loss.backward()
        assert same(plain, planned)
    for run in (call, placed):
        torch.manual_seed(4)
        with torch.autograd.graph.save_on_cpu():
            run(x)[0].backward()
    assert same(plain, planned)


def test_changing_sizes_are_told(caplog: pytest.LogCaptureFixture) -> None:
    call = compile_with(Layers(), **OPTIONS, dynamic=True, memory_budget="1GiB", layout="planned")
    call(torch.randn(128, 64))[0].backward()
    assert 'layout="planned" has no effect on a graph whose sizes change' in caplog.text


def test_a_step_that_arenas_would_not_help_says_so() -> None:
    compile_with(Layers(), **OPTIONS, memory_budget=1.0, layout="planned")(torch.randn(512, 64))
    report = remat_compiler.reports()[-1]
    assert report.arena_bytes == ()
    assert any("no arenas, since with" in note for note in report.notes)
