"""Whether a plan from the cache may be taken: it is verified for the current problem, and about as good as a new one.

The plan of the same problem is taken if the verifier and the simulator confirm what the entry claims.

The plan of another size is a sequence of the same operators, so it is valid for this size too; only its peak and its
times change.  It is taken if

    it fits             verified and simulated with the current sizes, within the budget and the limit of added time
    it costs no more    added / step <= added / step of the solved one + TOLERANCE
    it wastes little    the bytes that it leaves free would save at most TOLERANCE of the step

A plan that was made for a larger size is safe for a smaller one, but recomputes too much there.  The excess is
estimated: the plan spares `spared` bytes of the peak that the step has without it, and leaves `free` bytes of the
budget.  The cheapest added time grows about with the fourth power of the bytes to be spared, because the values that
are cheap to recompute are recomputed first.  So a new plan would save

    wasted = added * (1 - (1 - free / spared) ** 4)

and all of it if the step fits without recomputation.  `studies/changing_lengths/plan_cache.py`
of `benchmarks/` compares this with new plans.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from remat_compiler.ir.plan import FITTING, Plan, PlanResult, PlanStatus
from remat_compiler.ir.problem import RematProblem
from remat_compiler.plan_cache.key import CachedPlan
from remat_compiler.simulate.rules import Violation
from remat_compiler.simulate.timeline import MemoryTimeline, simulate
from remat_compiler.simulate.verify import verify
from remat_compiler.stats import timed

TOLERANCE = 0.02
"""Fraction of the step by which a plan of another size may be slower than a new one, by the estimate above."""
CONVEXITY = 4
"""Approximate power of the bytes to be spared with which the added time grows; measured on the zoo's step graphs."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on a cached plan.

    Attributes:
        result: The answer, if it may be taken.
        refusal: Why it may not; else empty.
    """

    result: PlanResult | None
    refusal: str = ""


def judge_same(problem: RematProblem, entry: CachedPlan) -> Judgement:
    """The plan of `entry`, which was made for `problem` itself, if it has the peak and the times that it claims."""
    result = entry.result
    if result.plan is None:
        return Judgement(None, "it holds no plan")
    # The budget is part of the key, so a plan whose status says otherwise was changed.
    fits = result.peak_bytes <= problem.budget_bytes
    if fits != (result.status in FITTING):
        return Judgement(None, f"a peak of {result.peak_bytes} bytes is not {result.status.value}")
    # A refusal holds the smallest peak found, which is above the budget; all other rules are checked as they are.
    room = problem if fits else replace(problem, budget_bytes=result.peak_bytes)
    found = _violations(room, result.plan, result.peak_bytes)
    if found:
        return Judgement(None, str(found[0]))
    # The verifier checks the peak; times are the simulator's.
    timeline = simulate(problem.graph, problem.costs, result.plan)
    if (timeline.time_ns, timeline.added_ns) != (result.time_ns, result.added_ns):
        return Judgement(None, f"it adds {timeline.added_ns} ns, not the {result.added_ns} ns that it claims")
    # Reports show the bound as proven, so it must at least be possible.
    if not 0 <= result.lower_bound_ns <= result.added_ns:
        return Judgement(None, f"{result.lower_bound_ns} ns do not bound the {result.added_ns} ns that it adds")
    return Judgement(result)


def judge_similar(problem: RematProblem, entry: CachedPlan) -> Judgement:
    """The plan of `entry`, which was made for another size of `problem`, if it is worth taking."""
    solved = entry.result
    if solved.plan is None or solved.status not in FITTING:
        return Judgement(None, "it did not fit its own size")
    # With this problem's sizes and budget: a plan that does not fit here is refused before its time is judged.
    found = _violations(problem, solved.plan)
    if found:
        return Judgement(None, str(found[0]))
    timeline = simulate(problem.graph, problem.costs, solved.plan)
    refusal = _too_slow(problem, timeline, entry)
    if refusal:
        return Judgement(None, refusal)
    return Judgement(
        PlanResult(
            status=PlanStatus.FEASIBLE,
            planner=solved.planner,
            plan=solved.plan,
            peak_bytes=timeline.peak_bytes,
            time_ns=timeline.time_ns,
            added_ns=timeline.added_ns,
            stats=solved.stats,
        )
    )


def wasted_ns(problem: RematProblem, timeline: MemoryTimeline) -> int:
    """Estimate of the added time of a plan that a new plan would not need; see the module docstring."""
    everything = simulate(problem.graph, problem.costs, Plan.saving_all(problem.graph)).peak_bytes
    # Here nothing needs to be recomputed at all.
    if everything <= problem.budget_bytes:
        return timeline.added_ns
    free = problem.budget_bytes - timeline.peak_bytes
    spared = everything - timeline.peak_bytes
    # The bytes that a new plan must spare, as a fraction of those that this one spares.
    still = max(1.0 - free / spared, 0.0) if spared > 0 else 0.0
    return int(timeline.added_ns * (1.0 - still**CONVEXITY))


def _too_slow(problem: RematProblem, timeline: MemoryTimeline, entry: CachedPlan) -> str:
    """Why a plan that fits is not taken; empty when it is."""
    step, added = problem.costs.step_ns, timeline.added_ns
    if problem.max_added_ns is not None and added > problem.max_added_ns:
        return f"it adds {added} ns, and {problem.max_added_ns} ns are allowed"
    # Shares of the step compare across sizes, where times do not.
    solved_share = entry.result.added_ns / entry.step_ns if entry.step_ns else 0.0
    if added > (solved_share + TOLERANCE) * step:
        return f"it adds {_percent(added, step)} of the step, and {100 * solved_share:.1f} % where it was solved"
    wasted = wasted_ns(problem, timeline)
    if wasted > TOLERANCE * step:
        return f"it recomputes too much, by about {_percent(wasted, step)} of the step"
    return ""


def _violations(problem: RematProblem, plan: Plan, claimed_peak_bytes: int | None = None) -> list[Violation]:
    with timed("verifying_s"):
        return verify(problem, plan, claimed_peak_bytes)


def _percent(part_ns: int, step_ns: int) -> str:
    return f"{100 * part_ns / step_ns:.1f} %" if step_ns else f"{part_ns} ns"
