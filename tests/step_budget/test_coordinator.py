"""Which complete steps are left to be decided about, and which graphs are followed, on made-up graphs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor, nn

from remat_compiler.graphs.steps import COORDINATOR
from remat_compiler.options import RematOptions
from remat_compiler.step_budget.coordinator import StepCoordinator, share_budget
from remat_compiler.step_model.events import Event, Turn
from remat_compiler.step_model.graph_memory import GraphMemory
from remat_compiler.step_model.running_step import PATIENCE
from remat_compiler.step_model.step import Step as AnyStep
from remat_compiler.watching.open_calls import OpenCall

Step = AnyStep[Any]


def options_of(**options: Any) -> RematOptions:
    """Options as the user gives them."""
    return RematOptions.parse({"memory_budget": 1000, **options}, check_planner=lambda name: name)


@dataclass(eq=False)
class MadeUp:
    """A planned graph that notes what it is told."""

    coordinator: StepCoordinator[Any]
    options: RematOptions = field(default_factory=options_of)
    frame: int | None = None
    is_planned_alone: bool = True
    awaits_earlier_graphs: bool = False
    aside_bytes: int = 0
    steps: list[Step] = field(default_factory=list)
    completed_step: Step | None = None
    steps_without: int = 0
    places: dict[Any, Any] = field(default_factory=dict)
    refusals: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.coordinator.follow(self)

    @property
    def followed(self) -> bool:
        return self in self.coordinator.unsettled_graphs()

    def finalise(self) -> None:
        self.completed_step = None
        self.coordinator.leave_out(self)

    def belongs_to(self, step: Step) -> None:
        self.steps.append(step)

    def noted_memory(self, note: Any) -> GraphMemory | None:
        return note if isinstance(note, GraphMemory) else None


class Twice(torch.autograd.Function):
    """A compiled graph, as far as autograd shows it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return 2 * gradients[0]


@pytest.fixture
def coordinator() -> StepCoordinator[Any]:
    return StepCoordinator(lambda step: None)


def run(coordinator: StepCoordinator[Any], *graphs: MadeUp, backward: bool = True) -> Step:
    """A complete step that calls `graphs` in a row, and runs them backward."""
    step: Step = AnyStep()
    for graph in graphs:
        step.add(graph)
    for call in reversed(range(len(graphs))):
        step.turns.append(Event(Turn.BACKWARD if backward else Turn.DROPPED, call))
    coordinator.watch._complete(step)
    return step


def test_a_step_of_one_graph_is_learnt_at_once(coordinator: StepCoordinator[Any]) -> None:
    graph = MadeUp(coordinator, frame=3)
    step = run(coordinator, graph)
    assert graph.steps == [step]
    assert graph.completed_step is None
    assert not graph.followed
    assert coordinator.was_whole_step(3)


def test_a_graph_with_a_part_of_the_budget_waits_for_a_decision(coordinator: StepCoordinator[Any]) -> None:
    graph = MadeUp(coordinator, is_planned_alone=False)
    step = run(coordinator, graph)
    assert graph.completed_step is step
    assert graph.followed


def test_a_graph_behind_others_that_were_not_watched_yet_waits_for_the_next_step(
    coordinator: StepCoordinator[Any],
) -> None:
    graph = MadeUp(coordinator, awaits_earlier_graphs=True)
    run(coordinator, graph)
    assert (graph.steps, graph.completed_step, graph.followed) == ([], None, True)
    step = run(coordinator, graph)
    assert graph.steps == [step]


def test_graphs_of_one_step_are_decided_about_together(coordinator: StepCoordinator[Any]) -> None:
    graphs = MadeUp(coordinator, frame=0), MadeUp(coordinator, frame=1)
    run(coordinator, graphs[0])
    assert coordinator.was_whole_step(0)
    step = run(coordinator, *graphs)
    assert [graph.completed_step for graph in graphs] == [step, step]
    assert not coordinator.was_whole_step(0)


def test_an_evaluation_teaches_nothing(coordinator: StepCoordinator[Any]) -> None:
    graph = MadeUp(coordinator, frame=0)
    run(coordinator, graph, backward=False)
    assert (graph.steps, graph.completed_step, graph.followed) == ([], None, True)
    assert not coordinator.was_whole_step(0)


def test_a_graph_that_no_step_runs_is_left_out_and_one_that_runs_is_not(coordinator: StepCoordinator[Any]) -> None:
    idle, busy = MadeUp(coordinator), MadeUp(coordinator, is_planned_alone=False)
    for _ in range(PATIENCE):
        run(coordinator, busy)
    assert idle.followed
    run(coordinator, busy)
    assert not idle.followed
    assert busy.followed


def test_a_kept_call_counts_with_one_of_the_same_number(coordinator: StepCoordinator[Any]) -> None:
    """Call 0 of a known step is kept by the user while the next step has come to its own call 0."""
    graph = MadeUp(coordinator)
    here = coordinator.watch.here
    outputs = [Twice.apply(torch.ones(1, requires_grad=True)) for _ in range(2)]
    for output in outputs:
        here.open[id(output.grad_fn)] = OpenCall(ref(output.grad_fn), graph, GraphMemory(50, 40, 60, 10), None, 0)
    assert coordinator.held_bytes(graph.options) == 2 * 40


def test_a_call_that_is_watched_counts_with_one_that_is_not(coordinator: StepCoordinator[Any]) -> None:
    """Nothing was to be learnt for a while amid a step, as where another thread decides in between."""
    graph, memory, completed = MadeUp(coordinator), GraphMemory(50, 40, 60, 10), list[Step]()
    coordinator._complete = completed.append  # type: ignore[method-assign]
    watched, known = (Twice.apply(torch.ones(1, requires_grad=True)) for _ in range(2))
    coordinator.watch.forward(graph, [], [watched], memory)
    coordinator.watch.here.open[id(known.grad_fn)] = OpenCall(ref(known.grad_fn), graph, memory, None, 0)
    assert coordinator.held_bytes(graph.options) == 2 * 40
    known.backward()
    assert coordinator.held_bytes(graph.options) == 40
    watched.backward()
    assert coordinator.held_bytes(graph.options) == 0
    assert [len(step.calls) for step in graph.steps] == []


def test_graphs_are_followed_without_being_kept(coordinator: StepCoordinator[Any]) -> None:
    graph = MadeUp(coordinator)
    assert coordinator.unsettled_graphs() == [graph]
    del graph
    assert coordinator.unsettled_graphs() == []
    assert not coordinator.unsettled


def test_budgets_are_shared_where_all_but_the_dump_is_the_same() -> None:
    assert share_budget(options_of(), options_of(dump="/tmp/elsewhere"))
    assert not share_budget(options_of(), options_of(memory_budget=1001))


def test_what_was_known_of_a_function_is_forgotten_with_dynamos_numbers(compiles_anew: None) -> None:
    """After a reset another function has the number of one that made up whole steps."""

    def train(model: nn.Module, x: Tensor) -> None:
        compiled = torch.compile(model, backend="remat", options={"memory_budget": "1MiB", "inner": "eager"})
        compiled(x).sum().backward()

    train(nn.Linear(4, 4), torch.randn(2, 4))
    assert COORDINATOR.was_whole_step(0)
    torch._dynamo.reset()
    compiled = torch.compile(nn.Tanh(), backend="remat", options={"memory_budget": "1MiB", "inner": "eager"})
    compiled(torch.randn(2, 4, requires_grad=True))
    assert not COORDINATOR.was_whole_step(0)
