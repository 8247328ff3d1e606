"""Orders to plan recomputation on: valid, different, and lower where readers of forward values had better wait."""

from __future__ import annotations

from random import Random

from builders import KB, LIBRARY, ProblemBuilder, random_problem, with_budget
from remat_compiler.ir.graph import Phase, StorageKind
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.verify import verify
from remat_passes.orders.order_backward import freedom_of
from remat_passes.orders.staged_order import staged_orders
from remat_passes.planning.auto import Auto
from remat_passes.sequences.profile import arrays_of
from remat_passes.sequences.sequence import Order, Placement, StepIndex, baseline_order, recompute


def orders_of(problem: RematProblem) -> list[Order]:
    index = StepIndex.of(problem.graph)
    return staged_orders(arrays_of(problem), index, freedom_of(problem.graph))


def test_orders_run_each_operator_once_after_what_it_needs() -> None:
    problems = [LIBRARY[name] for name in sorted(LIBRARY)]
    problems += [random_problem(Random(seed), forwards=5 + seed, backwards=5 + seed) for seed in range(40)]
    found = 0
    for problem in problems:
        index = StepIndex.of(problem.graph)
        joint = baseline_order(index, Placement.LAZY)
        orders = orders_of(problem)
        assert orders == orders_of(problem)
        assert len({joint, *orders}) == 1 + len(orders)
        for order in orders:
            assert order.forward == joint.forward
            assert sorted(order.backward) == sorted(joint.backward)
            plan = recompute(index, order, index.all_savable())
            assert verify(with_budget(problem, 1 << 60), plan) == []
        found += len(orders)
    assert found > 20


def branches(layers: int = 6) -> RematProblem:
    """Layers whose backward reads four wide values, two of them by the gradients of two weights, run first.

    Each gradient is as large as the wide values, which are quickly made again from the small ones between layers.
    """
    b = ProblemBuilder()
    values = [b.storage(KB, StorageKind.INPUT)]
    wide = []
    for _ in range(layers):
        wide.append([b.forward([values[-1]], 8 * KB, time=1) for _ in range(4)])
        values.append(b.forward(wide[-1], KB, time=500))
    b.run(Phase.FORWARD, [values[-1]], [(4, StorageKind.OUTPUT)])
    grad = b.storage(KB, StorageKind.TANGENT)
    for inner in reversed(wide):
        for value in inner[:2]:
            b.run(Phase.BACKWARD, [grad, value], [(8 * KB, StorageKind.GRADIENT)])
        first = b.backward([grad, inner[2]], 8 * KB)
        second = b.backward([grad, inner[3]], 8 * KB)
        grad = b.run(Phase.BACKWARD, [first, second], [(KB, StorageKind.TEMPORARY)])[0]
    return b.problem()


def test_auto_reaches_peaks_that_the_joint_order_cannot() -> None:
    problem = branches()
    # The gradients of all layers, three wide values in the last branch, what flows in, the tangent, the output.
    joint = (12 * 8 + 3 * 8 + 1 + 1) * KB + 4
    assert Auto().smallest_peak(problem).peak_bytes <= joint - 16 * KB
