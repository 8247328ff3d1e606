"""What is decided about the graphs of one step, on made-up graphs: kept, shared, refused, warned of."""

from __future__ import annotations

from typing import Any

import pytest

from builders import chain, residual
from remat_compiler.errors import InfeasibleBudget
from remat_compiler.step_budget.compiled_graph import CompiledGraph
from remat_compiler.step_budget.replan import decide
from remat_compiler.step_model.events import Call, Turn
from remat_compiler.step_model.graph_memory import GraphMemory
from remat_compiler.step_model.peak import whole_step_peak
from step_budget.made_up_graphs import MadeUpCompiler, new_coordinator, options_of, planned, step_of

TURNS = [(Turn.FORWARD, 0), (Turn.FORWARD, 1), (Turn.BACKWARD, 1), (Turn.BACKWARD, 0)]


def together(*memories: GraphMemory) -> int:
    """Peak of a step that runs two graphs one after the other."""
    return whole_step_peak(memories, [Call(0), Call(1)], TURNS)


def pair() -> tuple[MadeUpCompiler, MadeUpCompiler]:
    """A chain and a residual network."""
    return MadeUpCompiler(chain(16)), MadeUpCompiler(residual(12))


def graphs_under(budget: object, **options: Any) -> tuple[tuple[MadeUpCompiler, ...], list[CompiledGraph]]:
    """Both graphs, each compiled as if it had the budget for itself."""
    compilers, coordinator = pair(), new_coordinator()
    asked = options_of(budget, **options)
    return compilers, [planned(compiler, asked, coordinator) for compiler in compilers]


def native_together() -> int:
    """Peak of both without a budget."""
    first, second = pair()
    return together(first.native, second.native)


def memories(graphs: list[CompiledGraph]) -> list[GraphMemory]:
    found = [graph.memory for graph in graphs]
    assert all(memory is not None for memory in found)
    return [memory for memory in found if memory is not None]


def test_what_fits_together_is_kept_as_it_is() -> None:
    compilers, graphs = graphs_under(native_together())
    before = [graph.compiled for graph in graphs]
    decide(step_of(*graphs))
    assert [graph.compiled for graph in graphs] == before
    assert not any(compiler.requests for compiler in compilers)
    for compiler in compilers:
        (kept,) = compiler.kept
        assert kept.step is not None
        assert (kept.step.graphs, kept.step.peak_bytes, kept.step.limit_bytes) == (
            2,
            native_together(),
            native_together(),
        )


@pytest.mark.parametrize("part", [0.9, 0.7, 0.5])
def test_what_does_not_fit_together_shares_the_budget(part: float) -> None:
    budget = int(part * native_together())
    compilers, graphs = graphs_under(budget)
    assert together(*memories(graphs)) > budget, "each alone is within the budget, both are not"
    decide(step_of(*graphs))
    assert together(*memories(graphs)) <= budget
    assert sum(compiler.added_ns(graph) for compiler, graph in zip(compilers, graphs)) > 0
    for compiler in compilers:
        assert [real for _, real in compiler.requests].count(True) <= 1, "kernels are compiled once"
        assert compiler.kept[-1].step is not None


def test_what_is_emitted_counts_not_what_is_simulated() -> None:
    """Code that takes 16 KiB more than foreseen, twice: the shares are cut until that fits, too."""
    budget = int(0.7 * native_together())
    coordinator, asked = new_coordinator(), options_of(budget)
    compilers = [MadeUpCompiler(one.problem, more_bytes=16_384) for one in pair()]
    graphs = [planned(compiler, asked, coordinator) for compiler in compilers]
    decide(step_of(*graphs))
    assert 0.85 * budget < together(*memories(graphs)) <= budget, "cut by what is over, not to the smallest"


def test_a_step_that_cannot_fit_is_refused_with_the_smallest_peak_of_both() -> None:
    _, graphs = graphs_under(int(0.05 * native_together()), on_infeasible="min")
    for graph in graphs:
        graph.options = options_of(int(0.05 * native_together()), on_infeasible="error")
    with pytest.raises(InfeasibleBudget, match="2 graphs of the step together") as refused:
        decide(step_of(*graphs))
    least = refused.value.smallest_peak_bytes
    _, others = graphs_under(least, on_infeasible="error")
    decide(step_of(*others))
    assert together(*memories(others)) <= least


def test_on_request_the_smallest_peak_is_taken_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    budget = int(0.05 * native_together())
    _, graphs = graphs_under(budget, on_infeasible="min")
    caplog.clear()
    decide(step_of(*graphs))
    assert "the 2 graphs of the step together peak at" in caplog.text
    assert together(*memories(graphs)) < native_together()


def test_graphs_that_cannot_be_compiled_again_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    budget = int(0.7 * native_together())
    compilers, coordinator = pair(), new_coordinator()
    graphs = [planned(one, options_of(budget), coordinator, can_recompile=False) for one in compilers]
    decide(step_of(*graphs))
    assert "memory_budget was kept for each of them only" in caplog.text
    assert all("this graph only" in compiler.kept[-1].note for compiler in compilers)


def test_graphs_of_other_options_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    budget = int(0.7 * native_together())
    compilers, coordinator = pair(), new_coordinator()
    graphs = [planned(one, options_of(budget + 1_000 * i), coordinator) for i, one in enumerate(compilers)]
    decide(step_of(*graphs))
    assert "their options differ" in caplog.text


def test_a_part_becomes_the_whole_budget_for_a_graph_that_is_alone() -> None:
    compiler, coordinator = MadeUpCompiler(chain(16)), new_coordinator()
    graph = planned(compiler, options_of(compiler.native.peak_bytes), coordinator, has_part=True)
    assert compiler.added_ns(graph) > 0
    decide(step_of(graph))
    assert compiler.added_ns(graph) == 0
    assert memories([graph])[0].peak_bytes <= compiler.native.peak_bytes
    assert compiler.kept[-1].own_budget == compiler.native.peak_bytes


def test_graphs_with_parts_get_what_is_left_when_their_step_is_known() -> None:
    budget = native_together()
    compilers, coordinator = pair(), new_coordinator()
    graphs = [planned(one, options_of(budget), coordinator, has_part=True) for one in compilers]
    assert any(compiler.added_ns(graph) for compiler, graph in zip(compilers, graphs))
    decide(step_of(*graphs))
    assert [compiler.added_ns(graph) for compiler, graph in zip(compilers, graphs)] == [0, 0]
    assert together(*memories(graphs)) <= budget


def test_a_fraction_is_one_of_what_both_take_together_without_a_budget() -> None:
    _, graphs = graphs_under(0.6)
    decide(step_of(*graphs))
    assert together(*memories(graphs)) <= int(0.6 * native_together())


def test_the_least_peak_of_a_step_may_be_below_that_of_the_least_peaks() -> None:
    compilers, graphs = graphs_under("min")
    before = together(*memories(graphs))
    decide(step_of(*graphs))
    assert together(*memories(graphs)) <= before
    assert all(compiler.kept for compiler in compilers)


def test_a_step_decided_about_belongs_to_its_graphs() -> None:
    _, graphs = graphs_under(native_together())
    step = step_of(*graphs)
    decide(step)
    assert all(graph.steps == [step] and graph.completed_step is None for graph in graphs)
    assert all(graph.places for graph in graphs)
