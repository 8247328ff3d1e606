"""Plans between the levels: what they leave free is used, and nothing gets worse."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from remat_compiler.step_budget.share import PlanLevel
from remat_compiler.step_budget.share_finer import HALVINGS, MOST_PLANS, finer
from remat_compiler.step_model.events import Call, Turn
from remat_compiler.step_model.graph_memory import GraphMemory
from remat_compiler.step_model.peak import whole_step_peak


class Graphs:
    """Graphs that hold what they are allowed to, in steps of a few bytes, and take time for what they do not hold.

    Args:
        grains: For each graph, the bytes of one value.
        runs: How often each runs, all forwards before all backwards.
    """

    def __init__(self, grains: Sequence[int], runs: Sequence[int]) -> None:
        self.grains, self.runs, self.plans = grains, runs, 0
        self.calls = [Call(graph, parameters=i) for graph, n in enumerate(runs) for i in range(n)]

    def plan(self, graph: int, budget_bytes: int, between_bytes: int) -> PlanLevel:
        self.plans += 1
        held = min(budget_bytes - between_bytes, 1000) // self.grains[graph] * self.grains[graph]
        return PlanLevel(budget_bytes, between_bytes, GraphMemory(held, held, held, 0), 1000 - held)

    def levels(self, graph: int) -> list[PlanLevel]:
        return [self.plan(graph, budget, 0) for budget in (200, 500, 1000)]

    def peak(self, memories: Sequence[GraphMemory]) -> int:
        return whole_step_peak(memories, self.calls, [(Turn.FORWARD, i) for i in range(len(self.calls))])


def test_several_copies_of_one_graph_use_what_the_levels_leave_free() -> None:
    """Of 4 copies, 3 are held while one runs: 4 times 700 bytes fit, and the levels have 500 and 1,000 only."""
    graphs = Graphs([10], [4])
    levels = graphs.levels(0)
    (found,) = finer([levels[1]], [levels], [4], graphs.peak, 2_800, graphs.plan)
    # Halved four times, the bytes are met to a sixteenth of 500.
    assert 670 <= found.memory.held_bytes <= 700
    assert graphs.peak([found.memory]) <= 2_800


def test_a_graph_of_few_large_values_keeps_its_level() -> None:
    graphs = Graphs([500], [4])
    levels = graphs.levels(0)
    assert finer([levels[1]], [levels], [4], graphs.peak, 2_800, graphs.plan) == (levels[1],)


@given(
    st.lists(st.tuples(st.sampled_from([1, 30, 70, 250]), st.integers(1, 4)), min_size=1, max_size=12),
    st.integers(0, 10_000),
    st.data(),
)
def test_no_graph_gets_slower_and_the_step_still_fits(
    drawn: list[tuple[int, int]], more_bytes: int, data: st.DataObject
) -> None:
    grains, runs = zip(*drawn)
    graphs = Graphs(grains, runs)
    levels = [graphs.levels(i) for i in range(len(grains))]
    chosen = [data.draw(st.sampled_from(of_graph)) for of_graph in levels]
    limit = graphs.peak([one.memory for one in chosen]) + more_bytes
    before = graphs.plans
    found = finer(chosen, levels, runs, graphs.peak, limit, graphs.plan)
    assert graphs.peak([one.memory for one in found]) <= limit
    assert all(new.added_ns <= old.added_ns for new, old in zip(found, chosen))
    assert graphs.plans - before <= min(MOST_PLANS, HALVINGS * len(grains))
