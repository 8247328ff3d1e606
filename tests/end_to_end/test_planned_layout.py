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
from instruments.measure import allocator_events, live_bytes
from remat_compiler import backend
from remat_compiler.compilation import arenas
from remat_compiler.dynamic_shapes.dispatch import Dispatch
from remat_passes.layout.grouping import joined
from remat_passes.registry import choose_arenas

OPTIONS: dict[str, Any] = {"cost_model": "nominal", "inner": "inductor", "on_infeasible": "error"}


class Layers(nn.Module):
    """Layers with dropout and normalization; returns its loss, and a value inside that the caller may keep."""

    def __init__(self, depth: int = 2) -> None:
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
    # Steps as small as these reserve no less with arenas, which would be left out.
    monkeypatch.setattr(arenas, "choose_arenas", lambda step, traces, expandable: joined(step))
    monkeypatch.setattr(arenas, "taken_bytes", lambda traces, expandable: 0)
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
        given = {**OPTIONS, "memory_budget": 0.65, "layout": layout}
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
    # Anew: other tests have several calls in a step, which share the budget from then on.
    compiled.cache_clear()
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
    # Planned anew beside the gradients that added up; the graph by itself peaks as its report says.
    report = remat_compiler.reports()[-1]
    assert report.arena_bytes

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


@pytest.mark.slow
def test_arenas_serve_all_sizes_up_to_the_largest_so_far(made: list[Dispatch]) -> None:
    torch.manual_seed(0)
    plain, planned = Layers(3), Layers(3)
    planned.load_state_dict(plain.state_dict())
    given = {**OPTIONS, "memory_budget": "2MiB"}
    call, placed = (
        compile_with(model, **given, dynamic=True, layout=layout)
        for model, layout in ((plain, "plain"), (planned, "planned"))
    )
    reaches, kept = [], []
    for size in (512, 300, 640, 512):
        x = torch.randn(size, 64)
        results = []
        for run in (call, placed):
            torch.manual_seed(size)
            loss, inside = run(x)
            loss.backward()
            results.append((loss.detach(), inside))
        assert all(torch.equal(a, b) for a, b in zip(*results))
        assert same(plain, planned)
        kept.append([(value, value.clone()) for value in results[1]])

        def step(x: Tensor = x) -> object:
            planned.zero_grad()
            results = placed(x)
            results[0].backward()
            return results

        del loss, inside, results
        step()
        gc.collect()
        use = made[-1].latest
        assert use is not None
        assert max(live_bytes(allocator_events(step))) == use.variant.known.peak_bytes(use.sizes, 0)
        reaches.append(use.variant.arenas.reach)
        plain.zero_grad()
        planned.zero_grad()
    # What was planned for 640 rows has room for some more.
    assert reaches == [(512,), (512,), (800,), (800,)]
    assert all(torch.equal(value, copy) for step in kept for value, copy in step)
    # Forwards under way keep the arenas that they began with, though larger ones come meanwhile.
    for run in (call, placed):
        torch.manual_seed(5)
        losses = [run(torch.ones(size, 64))[0] for size in (700, 900)]
        for loss in losses:
            loss.backward()
    assert same(plain, planned)


class TwoGraphs(nn.Module):
    """Layers with a graph break between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Layers(2), Layers(2)

    def forward(self, x: Tensor) -> Tensor:
        loss, inside = self.first(x)
        torch._dynamo.graph_break()
        return loss + self.second(inside[:, None] * x)[0]


def test_each_graph_of_a_step_has_arenas_of_its_own() -> None:
    torch.manual_seed(0)
    plain, planned = TwoGraphs(), TwoGraphs()
    planned.load_state_dict(plain.state_dict())
    x, peaks = torch.randn(512, 64), []
    for model, layout in ((plain, "plain"), (planned, "planned")):
        torch._dynamo.reset()
        remat_compiler.clear_reports()
        given = {**OPTIONS, "memory_budget": "2MiB"}
        call = compile_with(model, **given, layout=layout, dynamic=False)

        def step(call: Any = call, model: nn.Module = model) -> object:
            model.zero_grad()
            torch.manual_seed(6)
            loss = call(x)
            loss.backward()
            return loss

        for _ in range(3):
            step()
        gc.collect()
        peaks.append(max(live_bytes(allocator_events(step))))
    assert same(plain, planned)
    assert max(peaks) <= 2 * 2**20
    assert peaks[1] <= peaks[0]
    assert len(remat_compiler.reports()) == 2
    assert all(report.arena_bytes for report in remat_compiler.reports())


def test_a_step_that_arenas_would_not_help_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arenas, "choose_arenas", choose_arenas)
    compile_with(Layers(), **OPTIONS, memory_budget=1.0, layout="planned")(torch.randn(512, 64))
    report = remat_compiler.reports()[-1]
    assert report.arena_bytes == ()
    assert any("none of the arenas that were tried" in note for note in report.notes)


def test_it_has_no_effect_on_interpreted_graphs_which_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    backend._warn_of_layout.cache_clear()
    given = {**OPTIONS, "inner": "eager", "memory_budget": 1.0, "layout": "planned"}
    for _ in range(2):
        compile_with(Layers(2), **given)(torch.randn(512, 64))[0].backward()
        assert remat_compiler.reports()[-1].arena_bytes == ()
    assert caplog.text.count('layout="planned" has no effect with inner="eager"') == 1
