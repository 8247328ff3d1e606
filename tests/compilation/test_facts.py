"""What is told of a step that does not fit: what has to be kept, and what does not depend on the batch."""

from __future__ import annotations

from dataclasses import replace

from builders import KB, ProblemBuilder, chain, encoder_decoder
from remat_compiler.compilation.facts import facts_of
from remat_compiler.errors import BudgetFacts, KeptBytes
from remat_compiler.ir.graph import SavePolicy, StorageKind
from remat_compiler.ir.plan import Plan, PlanResult, PlanStatus
from remat_compiler.ir.problem import RematProblem
from remat_compiler.options import RematOptions
from remat_compiler.simulate.floor import peak_floor
from remat_compiler.simulate.timeline import simulate
from remat_passes.planning.auto import Auto
from remat_passes.planning.save_all import SaveAll


def facts(problem: RematProblem, budget: object = 5) -> BudgetFacts:
    result = PlanResult(PlanStatus.INFEASIBLE, "made up", Plan.saving_all(problem.graph))
    return facts_of(problem, result, RematOptions.parse({"memory_budget": budget}, check_planner=str))


def test_what_stands_between_the_backward_and_what_may_run_again_is_kept() -> None:
    b = ProblemBuilder()
    x = b.storage(KB, StorageKind.INPUT)
    hidden = b.forward([x], 3 * KB, no_recompute="it draws")  # behind another one that is kept
    drawn = b.forward([hidden], 5 * KB, no_recompute="it draws")
    cheap = b.forward([drawn], 7 * KB)
    policy = b.forward([cheap], 11 * KB, save_policy=SavePolicy.MUST_SAVE)
    b.forward([x], 13 * KB, no_recompute="nobody reads it")
    grad = b.storage(KB, StorageKind.TANGENT)
    grad = b.backward([grad, policy], KB)
    b.backward([grad, cheap], KB, gradient=KB)
    sources = [op.source for op in b.problem().graph.ops]
    assert facts(b.problem()).kept == (
        KeptBytes(11 * KB, "a checkpoint policy saves it", sources[3]),
        KeptBytes(5 * KB, "it draws", sources[1]),
    )


def test_a_step_that_may_run_again_as_a_whole_keeps_nothing() -> None:
    found = facts(encoder_decoder())
    assert found.kept == ()
    assert not found.undeclared


def test_gradients_at_the_peak_do_not_depend_on_the_batch() -> None:
    problem = chain(length=4, size=8 * KB, gradient=2 * KB)
    timeline = simulate(problem.graph, problem.costs, Plan.saving_all(problem.graph))
    assert facts(problem).fixed_bytes == 2 * KB * (timeline.peak_step - timeline.boundary + 1)
    assert facts(problem).unbudgeted_bytes == timeline.peak_bytes


def test_a_budget_is_named_as_it_was_written() -> None:
    assert facts(chain(), "3KiB").asked == "'3KiB'"
    assert facts(chain(), 0.25).asked == "0.25 of the peak without a budget"
    assert facts(chain(), 0.25).unbudgeted_bytes is None


def test_what_no_plan_reaches_is_proven_of_the_plans_within_the_time() -> None:
    problem = chain()
    smallest = Auto(effort=500).smallest_peak(problem).peak_bytes
    free, limited = facts(problem).proven_bytes, facts(replace(problem, max_added_ns=10)).proven_bytes
    assert free is not None
    assert limited is not None
    assert peak_floor(problem.graph, problem.costs).peak_bytes <= free <= smallest
    assert free < limited <= SaveAll().plan(problem).peak_bytes
