"""What takes memory beside the plan is told once, with its bytes, where the budget is exceeded by it."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import remat_compiler
from instruments.measure import measure_step, train_step
from remat_compiler.backend import remat
from remat_compiler.step_budget.beside_the_plan import LOOKS, BesideThePlan, Outside, Untrained, made_by_untrained


@pytest.mark.parametrize(
    ("eager_bytes", "limit_bytes", "of_part", "told"),
    [
        (0, 10, False, False),
        (999, 2_000, False, False),
        (1_001, 2_000, False, True),
        (20, None, True, False),
        (1_000, None, True, True),
        (1_000, None, False, False),
    ],
)
def test_eager_work_is_told_of_where_it_exceeds_the_budget_or_is_much(
    eager_bytes: int, limit_bytes: int | None, of_part: bool, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    beside = BesideThePlan(1_000, limit_bytes, graphs=3)
    for _ in range(2):
        beside.say(Outside(eager_bytes=eager_bytes), None, of_part=of_part)
    assert len(caplog.records) == told
    for _ in range(2):
        beside.say(Outside(view_bytes=eager_bytes, made_bytes=eager_bytes), 1_000 + eager_bytes, of_part=of_part)
    assert len(caplog.records) == 4 * told
    if told:
        assert "50 %" in caplog.messages[0]
        assert "beside the 1000 B of 3 planned graphs" in caplog.messages[0]
        assert "outputs are views of inputs" in caplog.messages[1]
        assert "graphs without gradients make" in caplog.messages[2]
        assert "at its end" in caplog.messages[3]


def test_gradients_that_autograd_casts_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    for one in model.to(torch.bfloat16).parameters():
        one.grad_dtype = torch.float32
    torch._dynamo.reset()
    options = {"memory_budget": "min", "inner": "eager"}
    call = torch.compile(lambda x: model(x).sum(), backend=remat, options=options)
    x = torch.randn(4, 64, dtype=torch.bfloat16)

    def step() -> None:
        model.zero_grad()
        call(x).backward()

    for _ in range(3):
        step()
    (told,) = [text for text in caplog.messages if "Tensor.grad_dtype names" in text]
    model.zero_grad()
    measured = measure_step(step, warmup=0).peak_bytes
    assert measured > remat_compiler.reports()[-1].peak_bytes
    figure = re.search(r"they take ([\d.]+) KiB, more than", told)
    assert figure is not None
    assert float(figure[1]) * 1024 == pytest.approx(measured, rel=0.02)


def test_eager_work_counts_in_front_of_each_call_of_a_graph() -> None:
    weight, outside = torch.ones(64, requires_grad=True), Outside()
    made = [torch.tanh(weight.expand(rows, 64) * 2).sin().cos() for rows in (16, 8, 8, 16)]
    for one in made:
        outside.see([one], one)
    single = Outside()
    single.see([made[-1]], made[-1])
    assert outside.eager_bytes == outside.eager_of(1) == single.eager_bytes
    assert outside.eager_of(2) == single.eager_bytes * 3 // 2
    # The largest two follow each other in no step.
    assert outside.eager_of(3) == 2 * single.eager_bytes
    assert outside.eager_of(4) == outside.eager_of(5) == 3 * single.eager_bytes


@torch._dynamo.disable
def eager_product(x: torch.Tensor) -> torch.Tensor:
    """Left to eager; holds nothing for its backward."""
    return x * 1.1


class Products(nn.Module):
    """Layers, each given a result of an eager operator that the layer alone holds."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = eager_product(self.first(x).sin().cos().exp())
        x = eager_product(self.middle(x).sin().cos().exp())
        return self.last(x).square().mean()


@pytest.mark.usefixtures("compiles_anew")
def test_results_of_eager_operators_that_graphs_keep_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    model, x = Products(), torch.randn(256, 32)
    options = {"memory_budget": 210_000, "inner": "eager", "cost_model": "nominal"}
    compiled = torch.compile(model, backend=partial(remat, options=options))
    measured = measure_step(train_step(compiled, {"x": x})).peak_bytes
    figures = remat_compiler.reports()[-1].step
    assert figures is not None
    assert figures.peak_bytes is not None
    assert figures.peak_bytes < 210_000 < measured
    assert measured == pytest.approx(figures.peak_bytes + 2 * x.nbytes, rel=0.01)
    assert any("hold or return 64.0 KiB" in text for text in caplog.messages)


@torch._dynamo.disable
def eager_loop(x: torch.Tensor) -> torch.Tensor:
    """Left to eager; holds as much as its argument for its backward."""
    return torch.cat([torch.tanh(rows) for rows in x.split(16)])


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).sin().cos().exp()


class Layers(nn.Module):
    """One graph serves all layers but the first, each with an eager loop in front of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = eager_loop(layer(x))
        return x.square().mean()


@pytest.mark.usefixtures("compiles_anew")
def test_loops_left_to_eager_between_calls_of_one_graph_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    module = Layers()
    model = torch.compile(
        module,
        backend=remat,
        options={"memory_budget": 180_000, "inner": "eager", "cost_model": "nominal"},
        dynamic=False,
    )
    for _ in range(4):
        module.zero_grad(set_to_none=True)
        model(torch.randn(128, 32)).backward()
    told = [said for said in caplog.messages if "operators that Dynamo left to eager hold" in said]
    # One fits beside the graphs: each of the five holds the parts of its result, 16 KiB, and the next graph the result.
    assert len(told) == 1
    assert "hold or return 160.0 KiB" in told[0]


def test_what_a_graph_without_gradients_makes_is_counted_while_it_is_held() -> None:
    x, weight = torch.zeros(8, 64), torch.zeros(64, requires_grad=True)
    graph = Untrained(lambda x: (x + 1, x.view(-1), 3))
    made, view, _ = graph(x)
    assert made_by_untrained([x, weight, made, made, view, 3]) == made.nbytes
    # It may be held and be no argument.
    assert made_by_untrained([x]) == made.nbytes
    del made
    for _ in range(LOOKS):
        later, _, _ = graph(x)
    assert made_by_untrained([later]) == 0


def test_memory_that_a_graph_without_gradients_made_counts_whatever_tensor_holds_it() -> None:
    x = torch.zeros(8, 64)

    def replaces(x: torch.Tensor) -> tuple[torch.Tensor]:
        x.data = x.new_zeros(5, 64)
        return (x + 1,)

    (made,) = Untrained(replaces)(x)
    of_input, x.data = x.data, made
    del made
    assert made_by_untrained([]) == of_input.nbytes + x.nbytes
    x.data = torch.zeros(1)
    assert made_by_untrained([x]) == of_input.nbytes
    del of_input
    assert made_by_untrained([x]) == 0


class Backbone(nn.Module):
    """The first graph has no gradients, and makes as much as the second one takes."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.head = nn.Linear(64, 512).requires_grad_(False), nn.Linear(512, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.frozen(x)
        torch._dynamo.graph_break()
        return self.head(features).square().mean()


@pytest.mark.parametrize(("budget", "told"), [(0.9, True), (100_000, True), ("1MiB", False)])
def test_a_frozen_backbone_in_front_of_a_graph_break_is_told_of(
    budget: object, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    options: Any = {"memory_budget": budget, "inner": "eager", "on_infeasible": "min"}
    model = torch.compile(Backbone(), backend=remat, options=options)
    for _ in range(3):
        model(torch.randn(64, 64)).backward()
    assert sum("graphs without gradients make 128.0 KiB" in said for said in caplog.messages) == told


@pytest.mark.parametrize(("budget", "told"), [("min", True), (90_000, True), ("1MiB", False)])
def test_what_a_graph_without_gradients_makes_for_the_caller_is_told_of(
    budget: object, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """No graph takes it, but the program holds it through the step."""
    head = nn.Linear(64, 64)

    def step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mask = torch.cat([x > 0] * 16)
        torch._dynamo.graph_break()
        return head(x).tanh().sum(), mask

    options: Any = {"memory_budget": budget, "inner": "eager", "cost_model": "nominal"}
    compiled = torch.compile(step, backend=remat, options=options)
    kept = None
    for _ in range(4):
        head.zero_grad(set_to_none=True)
        # That of the step before is there in front of this one, and not made for it.
        loss, mask = compiled(torch.randn(64, 64))
        loss.backward()
        kept = mask, kept
    assert sum("graphs without gradients make 64.0 KiB" in said for said in caplog.messages) == told


class Features(Backbone):
    """The first graph makes little for the second one, and takes much for it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.frozen(x).sin().cos()[:, :64].sum(1, keepdim=True).expand(-1, 512) + 0
        features = features[:2].clone()
        torch._dynamo.graph_break()
        return self.head(features).square().mean()


@pytest.mark.parametrize(("budget", "told"), [("min", True), (100_000, True), ("1MiB", False)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_graph_without_gradients_that_peaks_higher_by_itself_is_told_of(
    budget: object, told: bool, dynamic: bool, caplog: pytest.LogCaptureFixture
) -> None:
    module = Features()
    options = {"memory_budget": budget, "inner": "eager", "cost_model": "nominal"}
    model = torch.compile(module, backend=remat, options=options, dynamic=dynamic)
    for _ in range(4):
        module.zero_grad(set_to_none=True)
        model(torch.randn(128, 64)).backward()
    assert len([said for said in caplog.messages if "nothing of it can be computed again" in said]) == told
