"""Whether a plan from the cache may be taken: verified for the problem at hand, and worth about what a new one is.

The plan of the same problem is taken when the verifier and the simulator find of it what the entry claims.

The plan of another size is a sequence of the same operators, so it is valid for this size too; what changes are its
peak and its times.  It is taken when

    it fits             verified and simulated with the sizes at hand, within the budget and the limit of added time
    it costs no more    added / step <= added / step of the solved one + TOLERANCE
    it wastes little    what the bytes that it leaves free are worth is at most TOLERANCE of the step

A plan that was made for a larger size is safe for a smaller one and recomputes too much there.  By how much is
estimated: it spares `spared` bytes of the peak that the step has without it, and leaves `free` bytes of the budget.
The cheapest added time grows about like the fourth power of what must be spared, since what is cheap to recompute is
recomputed first, so that a new plan would save

    wasted = added * (1 - (1 - free / spared) ** 4)

and all of it where the step fits without recomputation.  `benchmarks/plan_cache.py` compares this with new plans.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from remat_compiler.ir.plan import FITTING, Plan, PlanResult, PlanStatus
from remat_compiler.ir.problem import RematProblem
from remat_compiler.plan_cache.key import CachedPlan
from remat_compiler.simulate.timeline import MemoryTimeline, simulate
from remat_compiler.simulate.verify import Violation, verify
from remat_compiler.stats import timed

TOLERANCE = 0.02
"""Fraction of the step by which a plan of another size may be slower than a new one, as far as that can be told."""
CONVEXITY = 4
"""Power of the bytes to be spared by which the cheapest added time grows, about; measured on the zoo's step graphs."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a cached plan is worth.

    Attributes:
        result: The answer, where it may be taken.
        refusal: Why it may not; else empty.
    """

    result: PlanResult | None
    refusal: str = ""


def judge_same(problem: RematProblem, entry: CachedPlan) -> Judgement:
    """The plan of `entry`, which was made for `problem` itself, if it is what it claims to be."""
    result = entry.result
    if result.plan is None:
        return Judgement(None, "it holds no plan")
    fits = result.peak_bytes <= problem.budget_bytes
    if fits != (result.status in FITTING):
        return Judgement(None, f"a peak of {result.peak_bytes} bytes is not {result.status.value}")
    room = problem if fits else replace(problem, budget_bytes=result.peak_bytes)
    found = _violations(room, result.plan, result.peak_bytes)
    if found:
        return Judgement(None, str(found[0]))
    timeline = simulate(problem.graph, problem.costs, result.plan)
    if (timeline.time_ns, timeline.added_ns) != (result.time_ns, result.added_ns):
        return Judgement(None, f"it adds {timeline.added_ns} ns, not the {result.added_ns} ns that it claims")
    if not 0 <= result.lower_bound_ns <= result.added_ns:
        return Judgement(None, f"{result.lower_bound_ns} ns do not bound the {result.added_ns} ns that it adds")
    return Judgement(result)


def judge_similar(problem: RematProblem, entry: CachedPlan) -> Judgement:
    """The plan of `entry`, which was made for another size of `problem`, if it is worth taking."""
    solved = entry.result
    if solved.plan is None or solved.status not in FITTING:
        return Judgement(None, "it did not fit its own size")
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
    """Added time of a plan, with `timeline`, that a new plan would not need, about; see the module docstring."""
    everything = simulate(problem.graph, problem.costs, Plan.saving_all(problem.graph)).peak_bytes
    if everything <= problem.budget_bytes:
        return timeline.added_ns
    free = problem.budget_bytes - timeline.peak_bytes
    spared = everything - timeline.peak_bytes
    still = max(1.0 - free / spared, 0.0) if spared > 0 else 0.0
    return int(timeline.added_ns * (1.0 - still**CONVEXITY))


def _too_slow(problem: RematProblem, timeline: MemoryTimeline, entry: CachedPlan) -> str:
    """Why a plan that fits is not taken; empty when it is."""
    step, added = problem.costs.step_ns, timeline.added_ns
    if problem.max_added_ns is not None and added > problem.max_added_ns:
        return f"it adds {added} ns, and {problem.max_added_ns} ns are allowed"
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
