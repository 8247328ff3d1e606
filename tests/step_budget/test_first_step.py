"""What a graph may take in the first step that runs it, by what its end tells and by what ran before it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import fx

from remat_compiler.errors import InfeasibleBudget
from remat_compiler.options import RematOptions
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.step_budget.compiled_graph import CompiledGraph
from remat_compiler.step_budget.coordinator import StepCoordinator
from remat_compiler.step_budget.first_step import (
    allowance_of_several,
    check_first_step,
    first_request_of_several,
    has_fixed_sizes,
    part_of_fraction,
)
from remat_compiler.step_budget.replan import decide
from remat_compiler.step_budget.size_plans import FIRST_HELD, FIRST_PART
from remat_compiler.step_model.allowance import Allowance
from remat_compiler.step_model.graph_memory import GraphMemory
from remat_compiler.step_model.step import Step

BUDGET = 1_000


def graph(shape: tuple[int, ...] = (4, 4), *, breaks: bool = False) -> fx.GraphModule:
    """Dynamo's graph that returns one tensor of a shape, and ends with the function or at a graph break."""
    made = fx.Graph()
    x = made.placeholder("x")
    x.meta["example_value"] = torch.empty(shape)
    made.output((x,))
    gm = fx.GraphModule({}, made)
    gm.compile_subgraph_reason = SimpleNamespace(graph_break=breaks)  # type: ignore[assignment]
    return gm


LOSS, HIDDEN, BROKEN = graph(()), graph(), graph(breaks=True)


@dataclass
class MadeUpCoordinator:
    """A step in which graphs ran that hold some bytes."""

    memories: list[GraphMemory] = field(default_factory=list)
    options: RematOptions | None = None

    @property
    def held(self) -> int:
        return sum(memory.held_bytes for memory in self.memories)

    def open_calls_sharing(self, options: RematOptions) -> list[GraphMemory]:
        return self.memories

    def held_bytes(self, options: RematOptions) -> int:
        return self.held

    def was_whole_step(self, frame: int) -> bool:
        return False

    @property
    def watch(self) -> Any:
        step: Step[Any] = Step()
        for memory in self.memories:
            step.add(SimpleNamespace(options=self.options), memory)
        return SimpleNamespace(current=SimpleNamespace(step=step))


def coordinator(held: int = 0, options: RematOptions | None = None) -> StepCoordinator[CompiledGraph]:
    memories = [GraphMemory(held, held, held, 0)] if held else []
    return cast("StepCoordinator[CompiledGraph]", MadeUpCoordinator(memories, options))


def options_of(budget: object = BUDGET, **options: Any) -> RematOptions:
    return RematOptions.parse({"memory_budget": budget, **options}, check_planner=lambda name: name)


def request(budget: int | None = BUDGET, fraction: float | None = None) -> PartitionRequest:
    return PartitionRequest(budget, fraction)


@pytest.mark.parametrize("gm", [LOSS, HIDDEN])
def test_a_graph_that_ends_with_the_function_is_taken_to_be_alone(gm: fx.GraphModule) -> None:
    assert first_request_of_several(gm, options_of(), request(), coordinator()) is None


def test_a_graph_before_a_break_gets_a_part_of_what_is_left() -> None:
    found = first_request_of_several(BROKEN, options_of(), request(), coordinator(held=200))
    assert found is not None
    assert (found.budget_bytes, found.take_smallest) == (int((BUDGET - 200) * FIRST_PART), True)


def test_the_last_graph_gets_all_that_is_left() -> None:
    found = first_request_of_several(LOSS, options_of(), request(), coordinator(held=200))
    assert found is not None
    assert found.budget_bytes == BUDGET - 200


def test_nothing_left_is_still_a_byte_to_aim_for() -> None:
    found = first_request_of_several(LOSS, options_of(), request(), coordinator(held=5_000))
    assert found is not None
    assert found.budget_bytes == 1


def test_a_fraction_is_aimed_for_and_the_smallest_peak_is_taken() -> None:
    found = first_request_of_several(BROKEN, options_of(0.5), request(None, 0.5), coordinator())
    assert found is not None
    assert (found.fraction, found.take_smallest) == (0.5, True)


def test_under_min_each_graph_is_as_small_as_can_be_anyway() -> None:
    assert first_request_of_several(BROKEN, options_of("min"), request(1), coordinator()) is None


@pytest.mark.parametrize(
    ("gm", "budget", "is_part"), [(HIDDEN, 0.5, True), (LOSS, 0.5, False), (HIDDEN, BUDGET, False)]
)
def test_a_fraction_too_small_for_a_graph_without_a_loss_may_do_for_the_step(
    gm: fx.GraphModule, budget: object, is_part: bool
) -> None:
    found = part_of_fraction(gm, options_of(budget), request(None, 0.5), StepCoordinator(decide))
    assert (found is not None) == is_part
    assert found is None or found.take_smallest


limits_of = partial(allowance_of_several, changing=True)


def test_changing_sizes_hold_half_of_what_is_left_unless_they_return_a_loss() -> None:
    assert limits_of(LOSS, options_of(), BUDGET, coordinator()) is None
    held = int(BUDGET * FIRST_HELD)
    assert limits_of(HIDDEN, options_of(), BUDGET, coordinator()) == Allowance(BUDGET, held, BUDGET)
    assert limits_of(LOSS, options_of(), BUDGET, coordinator(held=300)) == Allowance.whole(700)
    quarter = Allowance.whole(int(BUDGET * FIRST_PART))
    assert limits_of(BROKEN, options_of(), BUDGET, coordinator()) == quarter


MEMORY = GraphMemory(400, 300, 500, 100)


def test_a_graph_that_fits_next_to_those_before_it_is_not_refused() -> None:
    asked = options_of()
    check_first_step(MEMORY, asked, BUDGET, coordinator(held=500, options=asked))


def test_one_that_does_not_is_refused_with_what_both_take() -> None:
    asked = options_of(on_infeasible="error")
    with pytest.raises(InfeasibleBudget, match="what 1 graphs hold that ran before in the step") as refused:
        check_first_step(MEMORY, asked, BUDGET, coordinator(held=501, options=asked))
    assert refused.value.smallest_peak_bytes == 1_001


def test_or_warned_of_where_the_options_say_so(caplog: pytest.LogCaptureFixture) -> None:
    asked = options_of(on_infeasible="min")
    check_first_step(MEMORY, asked, BUDGET, coordinator(held=501, options=asked))
    assert "peaks at 1.0 KiB" in caplog.text or "1001" in caplog.text


def test_graphs_of_another_budget_do_not_count() -> None:
    check_first_step(MEMORY, options_of(), BUDGET, coordinator(held=5_000, options=options_of(77)))


def test_sizes_are_fixed_where_no_input_has_a_symbol() -> None:
    assert has_fixed_sizes([torch.empty(3, 4), 7])
    symbolic: list[Any] = []

    def backend(gm: fx.GraphModule, inputs: list[Any]) -> Any:
        symbolic.append(has_fixed_sizes(inputs))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(lambda x: x * 2, backend=backend, dynamic=True)(torch.ones(5))
    assert symbolic == [False]
