"""How one `offload_budget` is shared among the graphs of a step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import chain, residual
from remat_compiler.ir.plan import PAGE_BYTES, Tier
from remat_compiler.offload.place import Place
from remat_compiler.offload.store import store_of
from remat_compiler.step_budget.compiled_graph import CompiledGraph
from remat_compiler.step_budget.fixed_plans import FixedPlans
from remat_compiler.step_budget.room import room_is_kept, share_room
from step_budget.made_up_graphs import MadeUpCompiler, new_coordinator, options_of, planned

BUDGET = 64 * PAGE_BYTES


def graphs_of(*compilers: MadeUpCompiler, can_recompile: bool = True) -> list[CompiledGraph]:
    """Graphs that may move `BUDGET` off the device if they are alone."""
    coordinator, options = new_coordinator(), options_of(10**9, offload_budget=BUDGET)
    made = [planned(one, options, coordinator, can_recompile=can_recompile) for one in compilers]
    for graph in made:
        if isinstance(graph.plans, FixedPlans):
            goal = graph.plans.alone
            request = replace(goal.request, offload_bytes=BUDGET)
            graph.plans = replace(graph.plans, alone=replace(goal, request=request))
    return made


def with_reserved(graph: CompiledGraph, size_bytes: int) -> None:
    assert graph.attempt is not None
    room = store_of(Place(Tier.HOST, None), pinned=False).reserve(size_bytes, BUDGET)
    graph.attempt = replace(graph.attempt, room=room)


def test_a_graph_gets_room_by_what_it_holds() -> None:
    small, large = MadeUpCompiler(chain(8)), MadeUpCompiler(chain(24))
    graphs = graphs_of(small, large)
    share_room(graphs, [1, 1])
    first, second = (graph.room_bytes for graph in graphs)
    assert first % PAGE_BYTES == second % PAGE_BYTES == 0
    assert BUDGET - 2 * PAGE_BYTES < first + second <= BUDGET
    assert second / first == pytest.approx(large.native.held_bytes / small.native.held_bytes, rel=0.2)


def test_a_graph_that_runs_often_needs_its_room_as_often() -> None:
    graphs = graphs_of(MadeUpCompiler(chain(16)), MadeUpCompiler(residual(12)))
    share_room(graphs, [3, 1])
    assert [graph.runs for graph in graphs] == [3, 1]
    assert BUDGET - 4 * PAGE_BYTES < 3 * graphs[0].room_bytes + graphs[1].room_bytes <= BUDGET


def test_what_stays_as_it_is_leaves_the_rest_to_the_others() -> None:
    (fixed,) = graphs_of(MadeUpCompiler(chain(16)), can_recompile=False)
    (other,) = graphs_of(MadeUpCompiler(chain(16)))
    with_reserved(fixed, 24 * PAGE_BYTES)
    share_room([fixed, other], [1, 1])
    assert other.room_bytes == BUDGET - 24 * PAGE_BYTES
    assert fixed.room_bytes == 0
    share_room([fixed, other], [4, 1])
    assert other.room_bytes == 0, "four runs of it move more than all"


@pytest.mark.parametrize(("sizes", "runs", "kept"), [((30, 34), (1, 1), True), ((30, 35), (1, 1), False)])
def test_the_rooms_of_all_count_together(sizes: tuple[int, int], runs: tuple[int, int], kept: bool) -> None:
    graphs = graphs_of(MadeUpCompiler(chain(16)), MadeUpCompiler(chain(16)))
    for graph, pages in zip(graphs, sizes):
        with_reserved(graph, pages * PAGE_BYTES)
    assert room_is_kept(graphs, [runs]) is kept


def test_each_step_may_move_all_of_it() -> None:
    graphs = graphs_of(MadeUpCompiler(chain(16)), MadeUpCompiler(chain(16)))
    for graph in graphs:
        with_reserved(graph, 64 * PAGE_BYTES)
    assert room_is_kept(graphs, [[1, 0], [0, 1]])
    assert not room_is_kept(graphs, [[1, 0], [1, 1]])


def test_a_room_that_was_reserved_for_one_run_counts_for_each() -> None:
    (graph,) = graphs_of(MadeUpCompiler(chain(16)))
    with_reserved(graph, 40 * PAGE_BYTES)
    # What is planned for two runs is not yet reserved for them.
    share_room([graph], [2])
    assert graph.room_bytes == 32 * PAGE_BYTES
    assert not room_is_kept([graph], [[2]])
    graph.room_runs = 2
    assert room_is_kept([graph], [[2]])
