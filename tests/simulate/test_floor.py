"""The floor is a lower bound of every plan, and exact where one operator forces the peak."""

from __future__ import annotations

from hypothesis import given

from drawn_graphs import GraphBuilder, chain, joint_plan, problems
from remat_compiler.ir.graph import OpId, Phase, StorageKind, TrainingGraph
from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import CostTable, RematProblem
from remat_compiler.simulate.floor import Floor, peak_floor
from remat_compiler.simulate.timeline import simulate


def free_costs(graph: TrainingGraph) -> CostTable:
    n = len(graph.ops)
    return CostTable((1,) * n, (0,) * n, ("roofline",) * n)


@given(problems())
def test_no_plan_that_runs_each_op_once_goes_below(problem: RematProblem) -> None:
    peak = simulate(problem.graph, problem.costs, joint_plan(problem.graph)).peak_bytes
    assert peak_floor(problem.graph, problem.costs).peak_bytes <= peak


def test_a_plan_that_recomputes_everything_meets_the_floor() -> None:
    graph = chain([100, 10, 10, 10])
    # Backward of f_1 reads f_0 (100 bytes): with f_0 recomputed just before, its working set is the peak.
    plan = Plan(tuple(OpId(i) for i in (0, 1, 2, 3, 0, 1, 2, 4, 0, 1, 5, 0, 6, 7)), 4)
    floor = peak_floor(graph, free_costs(graph))
    assert floor.op == 6
    assert simulate(graph, free_costs(graph), plan).peak_bytes == floor.peak_bytes


def test_kept_storages_alone_can_be_the_floor() -> None:
    b = GraphBuilder()
    x = b.storage(1, StorageKind.INPUT)
    tangent = b.storage(5, StorageKind.TANGENT)
    b.op([x], [b.storage(1, StorageKind.OUTPUT)])
    for _ in range(20):
        b.op([tangent], [b.storage(100, StorageKind.GRADIENT)], Phase.BACKWARD)
    graph = b.graph()
    assert peak_floor(graph, free_costs(graph)) == Floor(2006, None)


def test_workspace_counts_and_residents_do_not() -> None:
    b = GraphBuilder()
    x = b.storage(10**9, StorageKind.PARAMETER)
    b.op([x], [b.storage(8, StorageKind.OUTPUT)])
    assert peak_floor(b.graph(), CostTable((1,), (64,), ("measured",))) == Floor(72, OpId(0))


def test_a_graph_without_ops_has_no_floor() -> None:
    assert peak_floor(TrainingGraph((), ()), CostTable((), (), ())) == Floor(0, None)


def test_what_plans_may_leave_out_does_not_count() -> None:
    """A large result that nobody reads, and the tangents of a step that has no backward."""
    b = GraphBuilder()
    x = b.storage(1, StorageKind.INPUT)
    tangent = b.storage(400, StorageKind.TANGENT)
    b.op([x], [b.storage(8, StorageKind.OUTPUT)])
    assert peak_floor(b.graph(), free_costs(b.graph())) == Floor(8, None)
    b.op([tangent], [b.storage(100, StorageKind.TEMPORARY)], Phase.BACKWARD)
    assert peak_floor(b.graph(), free_costs(b.graph())) == Floor(8, None)
    b.op([tangent], [b.storage(16, StorageKind.GRADIENT)], Phase.BACKWARD)
    assert peak_floor(b.graph(), free_costs(b.graph())) == Floor(424, None)


def test_what_a_caller_may_let_go_of_is_in_the_simulator_s_floor_alone() -> None:
    b = GraphBuilder()
    x = b.storage(1, StorageKind.INPUT)
    tangents = [b.storage(size, StorageKind.TANGENT) for size in (400, 50)]
    b.op([x], [b.storage(300, StorageKind.OUTPUT)])
    for tangent in tangents:
        b.op([tangent], [b.storage(100, StorageKind.GRADIENT)], Phase.BACKWARD)
    graph = b.graph()
    assert peak_floor(graph, free_costs(graph)) == Floor(950, None)
    # The first operator of the backward reads one tangent and writes one gradient; nothing else need be there.
    assert peak_floor(graph, free_costs(graph), held=False) == Floor(500, OpId(1))


@given(problems())
def test_letting_go_of_something_never_raises_the_floor(problem: RematProblem) -> None:
    held = peak_floor(problem.graph, problem.costs)
    assert peak_floor(problem.graph, problem.costs, held=False).peak_bytes <= held.peak_bytes
