"""Gradients that are there before a step are planned for: together with them the step keeps to its budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compiler
from instruments.measure import measure_step
from remat_compiler.report.plan_report import StepFigures
from remat_compiler.step_budget.gradients_before import LOOKS, QUIET, GradientsBefore
from remat_compiler.units import format_bytes

WIDTH, ROWS, MICRO_BATCHES = 64, 512, 4
SCALARS = 2_048
"""Bytes of small gradients that are counted by one, and may lie in one piece of memory each."""
BESIDE_THEM = "later steps are planned beside them, if they can be"
NO_PLAN = "no plan was found that takes less"


class Model(nn.Module):
    """Layers and a loss, in one graph or, with a break, in two."""

    def __init__(self, breaks: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [m for _ in range(6) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.LayerNorm(WIDTH))]
        self.first, self.second, self.breaks = nn.Sequential(*layers[:9]), nn.Sequential(*layers[9:]), breaks

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.breaks:
            torch._dynamo.graph_break()
        return self.second(x).square().mean()


def accumulating(model: nn.Module, call: Callable[[Tensor], Tensor], steps: int = 3) -> list[int]:
    """Measured peaks of steps of some micro-batches each, the gradients of all of which count."""
    draw = torch.Generator().manual_seed(1)
    batches = torch.randn(MICRO_BATCHES, ROWS, WIDTH, generator=draw).unbind()

    def step() -> None:
        for x in batches:
            call(x).backward()

    peaks = []
    for _ in range(steps):
        model.zero_grad()
        peaks.append(measure_step(step, warmup=0).peak_bytes)
    return peaks


def trained(budget: object, *, breaks: bool = False, **options: Any) -> tuple[list[int], nn.Module]:
    """Peaks under a budget, and the model."""
    torch._dynamo.reset()
    remat_compiler.clear_reports()
    model, given = Model(breaks), {"inner": "eager", "cost_model": "nominal", "max_slowdown": None, **options}
    compiled = remat_compiler.compile(model, memory_budget=budget, dynamic=False, **given)
    return accumulating(model, compiled), model


def figures() -> StepFigures:
    """Those of the step, which all of its reports have."""
    found = {report.step for report in remat_compiler.reports()}
    assert len(found) == 1
    (step,) = found
    assert step is not None
    return step


def gradient_bytes(model: nn.Module) -> int:
    return sum(one.numel() * one.element_size() for one in model.parameters())


def assert_gradients_are_those_of_eager(model: nn.Module, breaks: bool = False) -> None:
    plain = Model(breaks)
    accumulating(plain, plain, steps=1)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.usefixtures("compiles_anew")
def test_a_loop_over_micro_batches_keeps_to_the_budget(breaks: bool, caplog: pytest.LogCaptureFixture) -> None:
    free, model = trained("1GiB", breaks=breaks)
    before = figures()
    assert before.gradient_bytes == gradient_bytes(model)
    assert before.peak_bytes == pytest.approx(free[-1], abs=SCALARS + (ROWS * WIDTH * 4 if breaks else 0))
    # Without gradients from before it would fit, and nothing would be computed again.
    budget = free[-1] - gradient_bytes(model) // 2
    (_, *later), model = trained(budget, breaks=breaks)
    step = figures()
    assert step.limit_bytes == budget
    assert step.gradient_bytes == gradient_bytes(model)
    assert max(later) <= budget
    assert step.peak_bytes is not None
    assert later[-1] - SCALARS <= step.peak_bytes <= later[-1] + (ROWS * WIDTH * 4 if breaks else 0)
    assert any(report.added_ns for report in remat_compiler.reports())
    # Of the micro-batch that first finds them, whose forward has run by then.
    (said,) = [said for said in caplog.messages if "gradients of" in said]
    assert BESIDE_THEM in said
    assert_gradients_are_those_of_eager(model, breaks)


@pytest.mark.parametrize("fraction", [0.9, 0.6])
@pytest.mark.usefixtures("compiles_anew")
def test_a_fraction_is_one_of_the_peak_with_these_gradients(fraction: float) -> None:
    (_, *free), _ = trained("1GiB")
    (_, *later), model = trained(fraction)
    assert figures().limit_bytes == pytest.approx(fraction * free[-1], abs=SCALARS)
    assert max(later) <= fraction * free[-1] + SCALARS
    assert figures().gradient_bytes == gradient_bytes(model)
    assert_gradients_are_those_of_eager(model)


@pytest.mark.usefixtures("compiles_anew")
def test_a_budget_without_room_for_them_is_told_of_once_and_trains_on(caplog: pytest.LogCaptureFixture) -> None:
    trained("min")
    (smallest,) = (report.peak_bytes for report in remat_compiler.reports())
    (first, *later), model = trained(smallest + 1_000)
    of_first, said = [said for said in caplog.messages if "gradients of" in said]
    assert BESIDE_THEM in of_first
    assert "gradients of 100.5 KiB are there before the step" in said
    assert NO_PLAN in said
    assert f"over memory_budget={format_bytes(smallest + 1_000)}; " in said
    # The smallest peak, and no refusal.
    (report,) = remat_compiler.reports()
    assert report.peak_bytes <= smallest + 1_000
    step = figures()
    assert step.limit_bytes == smallest + 1_000 < (step.peak_bytes or 0)
    assert max(later) <= (step.peak_bytes or 0) + SCALARS
    # Until they are found, those of all micro-batches but the first are beside the graph's own.
    assert first <= smallest + 1_000 + gradient_bytes(model) + SCALARS
    # Then they are added up one by one: no more than one layer's are there twice.
    assert max(later) < first - gradient_bytes(model) // 2
    assert_gradients_are_those_of_eager(model)


@pytest.mark.usefixtures("compiles_anew")
def test_gradients_that_are_set_to_zero_are_there_as_well() -> None:
    (_, *free), model = trained("1GiB")
    budget = free[-1] - gradient_bytes(model) // 2
    torch._dynamo.reset()
    remat_compiler.clear_reports()
    model = Model()
    compiled = remat_compiler.compile(model, budget, dynamic=False, inner="eager", cost_model="nominal")
    x = torch.randn(ROWS, WIDTH)
    for _ in range(3):
        model.zero_grad(set_to_none=False)
        compiled(x).backward()
    assert figures().gradient_bytes == gradient_bytes(model)
    (report,) = remat_compiler.reports()
    assert report.added_ns
    assert report.peak_bytes + gradient_bytes(model) <= budget


def with_gradient(rows: int) -> torch.Tensor:
    """A leaf whose gradient has so many rows of 256 bytes."""
    leaf = torch.zeros(rows, 64, requires_grad=True)
    leaf.grad = torch.zeros(rows, 64)
    return leaf


def watching(limit_bytes: int | None = 2_000, forward_bytes: int = 0) -> tuple[GradientsBefore, list[int]]:
    """What looks at a step, and the bytes with which it asked for a decision."""
    asked: list[int] = []

    def ask() -> bool:
        asked.append(found.size_bytes)
        return True

    found = GradientsBefore(1_000, limit_bytes, forward_bytes, ask)
    return found, asked


def test_gradients_of_all_graphs_count_together_and_once() -> None:
    found, asked = watching()
    first, second = with_gradient(2), with_gradient(2)
    for begins in (True, False):  # the leaves of the second graph are known from its first look on
        looks = [found.look("first", [first, torch.zeros(1), 3], begins=True)]
        looks.append(found.look("second", [second, first], begins=False))
        assert None not in looks
        for one in reversed(looks):
            assert one is not None
            one()
        assert begins or found.size_bytes == 1_024
    assert asked[-1] == 1_024


def test_gradients_of_the_step_itself_do_not_count() -> None:
    found, asked = watching()
    leaf = torch.zeros(2, 64, requires_grad=True)
    first = found.look("graph", [leaf], begins=True)
    second = found.look("graph", [leaf], begins=False)
    assert first is not None
    assert second is not None
    first()
    leaf.grad = torch.zeros(2, 64)
    second()
    assert (found.size_bytes, asked) == (0, [])


def test_a_gradient_that_waits_to_be_sent_counts() -> None:
    found, _ = watching()
    received, sent = torch.zeros(2, 64, requires_grad=True), torch.zeros(2, 64)
    begins = found.look("graph", [received], begins=True)
    assert begins is not None
    made = begins()
    assert made is not None
    made([None, sent])
    for held in (True, False):
        begins = found.look("graph", [torch.zeros(2, 64, requires_grad=True)], begins=True)
        assert begins is not None
        assert bool(sum(found._at_begin.values())) == held
        begins()
        assert found.size_bytes == 512
        sent = torch.zeros(0)


def test_gradients_that_the_forward_alone_finds_come_on_top_of_it(caplog: pytest.LogCaptureFixture) -> None:
    for forward_bytes in (600, 800):
        found, asked = watching(1_200, forward_bytes)
        leaf = with_gradient(2)
        begins = found.look("graph", [leaf], begins=True)
        leaf.grad = None
        assert begins is not None
        begins()
        assert not asked
        assert len(caplog.records) == (forward_bytes + 512 > 1_200)
    assert "are freed after its forward" in caplog.messages[0]


def test_gradients_of_all_modules_that_one_graph_serves_are_found() -> None:
    found, _ = watching()
    modules = [nn.Parameter(torch.zeros(2, 64)) for _ in range(2 * LOOKS)]
    for one in modules:
        one.grad = torch.zeros(2, 64)
    looks = [found.look("graph", [one], begins=i == 0) for i, one in enumerate(modules)]
    for look in reversed(looks):
        assert look is not None
        look()
    # At the begin of the first step only the parameters of its first call are known.
    assert found.size_bytes == 512
    looks = [found.look("graph", [one], begins=i == 0) for i, one in enumerate(modules)]
    for look in reversed(looks):
        assert look is not None
        look()
    assert found.size_bytes == 2 * LOOKS * 512


def test_looking_ends() -> None:
    found, _ = watching()
    assert all(found.look("graph", [torch.zeros(1)], begins=True) for _ in range(LOOKS))
    assert found.look("graph", [with_gradient(9)], begins=True) is None


@pytest.mark.usefixtures("compiles_anew")
def test_gradients_that_the_first_step_made_itself_are_not_from_before_it() -> None:
    model = Model()
    for part in (model.first, model.second):
        remat_compiler.compile(part, "1GiB", dynamic=False, inner="eager", cost_model="nominal")

    def step() -> None:
        held = []
        for _ in range(2):
            held.append(model.first(torch.ones(4, WIDTH)))
            # Its gradients of the first call are there before the second one, while the step goes on.
            model.second(held[-1].detach()[:2]).sum().backward()
        sum(held, torch.zeros(())).sum().backward()

    for _ in range(3):
        model.zero_grad()
        step()
    steps = [report.step for report in remat_compiler.reports()]
    assert len(steps) == 2
    assert [None if one is None else one.gradient_bytes for one in steps] == [0, 0]


HOLDERS: dict[str, Callable[[int, list[Tensor], list[Any]], None]] = {
    "the first step's": lambda step, made, held: held.extend(made if step == 0 else ()),
    "each step's": lambda _, made, held: held.extend(made),
    "the latest step's": lambda _, made, held: held.__setitem__(slice(None), made),
}
"""How a program may hold gradients beside `grad`, by the number of the step and its gradients."""


@pytest.mark.parametrize("of_autograd", [False, True], ids=["backward", "autograd.grad"])
@pytest.mark.parametrize("holds", HOLDERS)
@pytest.mark.usefixtures("compiles_anew")
def test_gradients_that_a_program_holds_elsewhere_are_its_own(
    holds: str, of_autograd: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """They are none that the next backward adds to: the plan stays, and nothing is told."""
    (_, *free), _ = trained("1GiB")
    torch._dynamo.reset()
    remat_compiler.clear_reports()
    model, held = Model(), list[Any]()
    parameters = list(model.parameters())
    # Enough for a step by itself, not beside other gradients.
    budget = free[-1] - gradient_bytes(model) // 2
    compiled = remat_compiler.compile(model, budget, dynamic=False, inner="eager", cost_model="nominal")
    for i in range(4):
        model.zero_grad()
        loss = compiled(torch.randn(ROWS, WIDTH))
        if of_autograd:
            made = list(torch.autograd.grad(loss, parameters))
        else:
            loss.backward()
            made = [one.grad for one in parameters if one.grad is not None]
        HOLDERS[holds](i, made, held)
    (report,) = remat_compiler.reports()
    assert (report.step, report.added_ns) == (None, 0)
    assert not any("gradients of" in said for said in caplog.messages)


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.usefixtures("compiles_anew")
def test_a_step_has_all_of_the_budget_again_once_gradients_are_gone(breaks: bool) -> None:
    (_, *free), model = trained("1GiB", breaks=breaks)
    budget = free[-1] - gradient_bytes(model) // 2
    torch._dynamo.reset()
    remat_compiler.clear_reports()
    model = Model(breaks)
    compiled = remat_compiler.compile(
        model, budget, dynamic=False, inner="eager", cost_model="nominal", max_slowdown=None
    )
    added = []
    for i in range(4 + QUIET + 4):
        if i >= 4:
            model.zero_grad()
        compiled(torch.randn(ROWS, WIDTH)).backward()
        added.append(sum(report.added_ns for report in remat_compiler.reports()))
    assert added[4] > 0
    assert added[-1] == 0
    assert {report.step.gradient_bytes for report in remat_compiler.reports() if report.step is not None} == {0}


def test_gradients_that_come_back_stay() -> None:
    found, asked = watching()
    found.planned_bytes = 512

    def step(leaf: Tensor) -> None:
        begins = found.look(leaf, [leaf], begins=True)
        assert begins is not None
        begins()

    step(with_gradient(2))
    assert found.size_bytes == 512
    for _ in range(QUIET + 1):
        step(torch.zeros(2, 64, requires_grad=True))
    assert (found.size_bytes, asked) == (0, [0])
    step(with_gradient(4))
    for _ in range(2 * QUIET):
        step(torch.zeros(2, 64, requires_grad=True))
    assert found.size_bytes == 1_024
