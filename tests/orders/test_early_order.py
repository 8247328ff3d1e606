from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from builders import KB, ProblemBuilder, problems, with_budget
from remat_compiler.ir.graph import Phase, StorageKind
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.rules import Rule
from remat_compiler.simulate.timeline import simulate
from remat_compiler.simulate.verify import verify
from remat_passes.orders.early_order import early_orders
from remat_passes.planning.auto import Auto
from remat_passes.planning.save_all import SaveAll
from remat_passes.sequences.sequence import Placement, StepIndex, baseline_order, recompute


def derivatives(layers: int = 8, size: int = 8 * KB) -> RematProblem:
    """Activations whose derivative is made of two saved values by tangent-free operators."""
    b = ProblemBuilder()
    value = b.storage(size, StorageKind.INPUT)
    inner = []
    for _ in range(layers):
        wide = b.forward([value], size, time=100)
        curve = b.forward([wide], size, time=100)
        value = b.forward([wide, curve], size)
        inner.append((wide, curve))
    grad = b.storage(size, StorageKind.TANGENT)
    for wide, curve in reversed(inner):
        slope = b.run(Phase.TANGENT_FREE, [wide], [(size, StorageKind.TEMPORARY)])[0]
        derivative = b.run(Phase.TANGENT_FREE, [slope, curve], [(size, StorageKind.TEMPORARY)])[0]
        grad = b.backward([grad, derivative], size)
    return b.problem()


def test_a_derivative_is_saved_in_place_of_what_it_is_made_of() -> None:
    problem = derivatives()
    asked = with_budget(problem, int(0.7 * SaveAll().plan(problem).peak_bytes))
    result = Auto().plan(asked)
    assert result.peak_bytes <= asked.budget_bytes
    assert result.added_ns == 0


@settings(max_examples=60)
@given(problem=problems(), fraction=st.sampled_from((0.4, 0.7, 0.9)))
def test_early_orders_are_valid_and_run_the_same_operators(problem: RematProblem, fraction: float) -> None:
    asked = with_budget(problem, int(fraction * SaveAll().plan(problem).peak_bytes))
    index = StepIndex.of(problem.graph)
    lazy = baseline_order(index, Placement.LAZY)
    for order in early_orders(asked):
        assert sorted(order.forward + order.backward) == sorted(lazy.forward + lazy.backward)
        assert len(order.forward) > len(lazy.forward)
        plan = recompute(index, order, index.all_savable())
        timeline = simulate(problem.graph, problem.costs, plan)
        assert {v.rule for v in verify(asked, plan, timeline.peak_bytes)} <= {Rule.BUDGET}
