"""One `offload_budget` for all graphs of a step: each may move a part of it off the device.

What a graph can move with effect is what it holds between its forward and its backward, so the parts are in proportion
to that.  Nothing is given back while a step runs, so a graph that runs several times needs its part as often.
"""

from __future__ import annotations

from collections.abc import Sequence

from remat_compiler.ir.plan import PAGE_BYTES
from remat_compiler.step_budget.compiled_graph import CompiledGraph


def share_room(graphs: Sequence[CompiledGraph], runs: Sequence[int]) -> None:
    """Set `room_bytes` and `runs` of each graph.

    Args:
        graphs: The graphs of some steps; those that cannot be compiled again keep what they have.
        runs: How often a step runs each at most.
    """
    fixed = sum(n * _moved_bytes(graph) for graph, n in zip(graphs, runs) if graph.plans.offload_bytes is None)
    left = max(_budget(graphs) - fixed, 0)
    planned = [(graph, n) for graph, n in zip(graphs, runs) if graph.plans.offload_bytes is not None]
    held = [0 if graph.unbudgeted is None else n * graph.unbudgeted.held_bytes for graph, n in planned]
    for (graph, n), own in zip(planned, held):
        part = left * own // max(sum(held), 1) // max(n, 1)
        graph.runs, graph.room_bytes = n, part // PAGE_BYTES * PAGE_BYTES


def room_is_kept(graphs: Sequence[CompiledGraph], runs_of_steps: Sequence[Sequence[int]]) -> bool:
    """Whether the graphs, as they are compiled, move no more than the budget for it in any step.

    Args:
        graphs: The graphs of the steps.
        runs_of_steps: For each step, how often it runs each graph.
    """
    moved = [sum(n * _moved_bytes(graph) for graph, n in zip(graphs, runs)) for runs in runs_of_steps]
    return max(moved, default=0) <= _budget(graphs)


def _budget(graphs: Sequence[CompiledGraph]) -> int:
    limits = [graph.plans.offload_bytes for graph in graphs]
    return min((limit for limit in limits if limit is not None), default=0)


def _moved_bytes(graph: CompiledGraph) -> int:
    """What one run moves off the device."""
    room = None if graph.attempt is None else graph.attempt.room
    return 0 if room is None else room.size_bytes // graph.room_runs
