"""The exact planner: `remat_passes.exact`, by a search over demanded sets and by CBC or HiGHS through PuLP.

OPTIMAL means least added time of all plans that run forward and backward operators for the first time in joint order,
run backward operators once, and run any other at most `passes_per_gap` times between two of those first executions,
in joint order.  If the stats say ``proof: demands``, operators in between may run in any order and any number of times:
the plan is optimal among all that keep the order of first executions.  `PlanResult.lower_bound_ns` holds for the same
plans; `Auto` may go below it by reordering the backward or by running operators in another order in between.  The
stats say what was proven, and whether a limit or the size of the program stopped the proof.

`Auto`, kept to that order, gives the initial plan and the cutoff; its plan is the answer if nothing better is found.
Where `Auto` finds a cheaper plan with all of its effort and in an order of its own, that plan is the answer, and
nothing is claimed of it but the bound: a user of the exact planner never gets less than the default one gives.

The program of all executions outgrows any solver at some hundred operators, so it is never the whole one that is built
there.  Bounds come from programs of merged stages, which grow from one window on for as long as they keep below
`max_executions` (`remat_passes.exact.refine`).

Where values may be moved off the device, programs with a variable more for each value decide which ones are (see
`remat_passes.exact.moved_values`).  The answer is the best of their plan, of `Auto`'s, and of the exact plan that moves
nothing; nothing is proven of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from remat_compiler.ir.plan import Plan, PlanResult, PlanStatus
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.floor import peak_floor
from remat_compiler.simulate.verify import verify
from remat_passes.bounds.instant import OrderClass
from remat_passes.bounds.lower_bound import Bound, lower_bound_ns
from remat_passes.exact.backends import SolverOptions
from remat_passes.exact.program import Cuts
from remat_passes.exact.prove import Effort, Proof, prove
from remat_passes.exact.refine import least_executions
from remat_passes.exact.solver import check_solver
from remat_passes.exact.space import OutsideSpace, Reductions
from remat_passes.exact.stages import space_of
from remat_passes.planning.auto import Auto
from remat_passes.planning.interface import Candidate, choose

BY_AUTO = "by auto, in an order of its own"
"""What the stats say of a plan whose order is not that of the proof."""
PRICED = 100
"""Operators of the smallest graph whose instants are priced before there is a program."""
NOTHING = Bound(0, None, "", OrderClass.JOINT)
CUTS = Cuts(behind=True)
NO_CUTS = Cuts(exclusive=False, useful=False, once=False)
NO_REDUCTIONS = Reductions(False, False, False, False, False)


@dataclass(frozen=True, slots=True)
class Ilp:
    """Mixed-integer programs: proves the optimum of small graphs, improves plans of larger ones, gives a lower bound.

    Attributes:
        solver: ``highs`` or ``cbc``; the other one replaces it where it is not installed.
        time_limit: Seconds for all programs.  HiGHS counts its work instead, and stops at the same point in every run
            and on any machine; CBC stops by CPU seconds, so that a proof that this limit stops may differ from run to
            run, and so may a plan.
        gap: Relative gap between plan and bound at which the solver stops.
        node_limit: Nodes of the solver's tree, or `None` for no limit.
        states: States that a stage of the search over demanded sets may have; 0 for programs alone.
        effort: Work allowed for `Auto`, which gives the initial plan.
        reorders: Whether `Auto`'s plan in another order is the answer where it is cheaper.
        cuts: Whether to add valid inequalities; they change only the time that the proof takes.
        reductions: Whether to shrink the program; this changes only the time that the proof takes.
        passes_per_gap: How often an operator may run between two first executions.
        max_executions: Largest program that is built, in executions that it decides about; 0 for none.
    """

    name: ClassVar[str] = "ilp"
    solver: str = "highs"
    time_limit: float = 20.0
    gap: float = 0.0
    node_limit: int | None = None
    states: int = 50_000
    effort: int = 6_000
    reorders: bool = True
    cuts: bool = True
    reductions: bool = True
    passes_per_gap: int = 1
    max_executions: int = 2_000

    def plan(self, problem: RematProblem) -> PlanResult:
        """Answer `problem`; see `Planner.plan` and the module docstring.

        Raises:
            ValueError: `solver` is unknown.
        """
        # An unknown solver is an error even if the problem needs no solver.
        check_solver(self.solver)
        found = self._moving(problem) if problem.moves else self._proven(problem)
        return self._beside_auto(problem, found) if self.reorders else found

    def _beside_auto(self, problem: RematProblem, found: PlanResult) -> PlanResult:
        """`found`, or the default planner's plan if that is better."""
        # No plan adds less than nothing, so there is no need to look.
        if found.status is PlanStatus.OPTIMAL and found.added_ns == 0:
            return found
        default = Auto().plan(replace(problem, reference=None)).plan
        if default is None:
            return found
        # The first of equals wins, which is the one that something is proven of.
        candidates = [Candidate(plan) for plan in (found.plan, default) if plan is not None]
        best = choose(problem, self.name, candidates)
        if best.plan == found.plan:
            return found
        bound = min(found.lower_bound_ns, best.added_ns)
        return replace(best, lower_bound_ns=bound, stats=(*found.stats, ("plan", BY_AUTO)))

    def _proven(self, problem: RematProblem) -> PlanResult:
        """The best plan of the joint order, with what is proven of it."""
        # Without the reference, since `Auto` would return one that fits as it is and search no further.
        auto = Auto(self.effort, reorders=False).plan(replace(problem, reference=None))
        if auto.plan is None:
            return replace(auto, planner=self.name)
        candidates = [Candidate(auto.plan), *([Candidate(problem.reference)] if problem.reference else [])]
        first = choose(problem, self.name, candidates)
        # No plan adds less than nothing.
        if first.status is PlanStatus.FEASIBLE and first.added_ns == 0:
            return replace(first, status=PlanStatus.OPTIMAL, stats=(("proof", "nothing is executed twice"),))
        # No order and no recomputation goes below the needs of a single operator, so no program is asked.
        floor = peak_floor(problem.graph, problem.costs).peak_bytes
        if floor > problem.budget_bytes:
            return _explained(first, f"proven: one operator needs {floor} bytes")
        try:
            executions = self._executions(problem)
            if executions > self.max_executions:
                return _explained(first, f"not tried: {executions} executions to decide, limit {self.max_executions}")
            plan = first.plan if first.status is PlanStatus.FEASIBLE else None
            # On small graphs programs prove more, and where no time is given, nothing is proven.
            priced = plan and self.time_limit and len(problem.graph.ops) >= PRICED
            known = lower_bound_ns(problem, order=OrderClass.JOINT) if priced else NOTHING
            proof = prove(problem, plan, self._effort(), known.bound_ns, known.instant)
            return self._result(problem, first, proof)
        except OutsideSpace as error:
            return _explained(first, f"not tried: {error}")

    def _moving(self, problem: RematProblem) -> PlanResult:
        """The best of `Auto`'s plan, of the exact plan that moves nothing, and of the programs' plan with moves."""
        half = replace(self, time_limit=self.time_limit / 2)
        alone = half._proven(replace(problem, offload_bytes=0))
        auto = Auto(self.effort, reorders=False).plan(replace(problem, reference=None))
        candidates = [Candidate(plan) for plan in (alone.plan, auto.plan) if plan is not None]
        if not candidates:
            return replace(auto, planner=self.name)
        best = choose(problem, self.name, candidates)
        if best.status is PlanStatus.FEASIBLE and best.added_ns == 0:
            return replace(best, status=PlanStatus.OPTIMAL, stats=(("proof", "nothing is executed twice"),))
        found = half._programmed(problem, best)
        if found is not None:
            best = choose(problem, self.name, [*candidates, Candidate(found)])
        return _explained(best, "none where values may be moved")

    def _programmed(self, problem: RematProblem, first: PlanResult) -> Plan | None:
        """The plan of the programs in which values may be moved; `None` if they find none."""
        try:
            if self._executions(problem) > self.max_executions:
                return None
            # The search over demanded sets knows of no moves.
            effort = replace(self._effort(), states=0)
            found = prove(problem, first.plan if first.status is PlanStatus.FEASIBLE else None, effort).plan
        except OutsideSpace:
            return None
        return None if found is None or verify(problem, found) else found

    def _executions(self, problem: RematProblem) -> int:
        """How many executions the smallest program decides about; errors as `space_of`."""
        return least_executions(space_of(problem, self._effort().reductions, self.passes_per_gap))

    def _effort(self) -> Effort:
        return Effort(
            SolverOptions(self.solver, self.time_limit, self.node_limit, self.gap),
            self.states,
            Reductions() if self.reductions else NO_REDUCTIONS,
            CUTS if self.cuts else NO_CUTS,
            self.reductions,
            self.passes_per_gap,
            self.max_executions,
        )

    def _result(self, problem: RematProblem, first: PlanResult, proof: Proof) -> PlanResult:
        """The better of `first` and the plan of `proof`, with the proven status and bound."""
        stats = (("states", str(proof.states)), *proof.stats)
        if proof.plan is None or verify(problem, proof.plan):
            best = first
        else:
            fits = first.status is PlanStatus.FEASIBLE
            others = [Candidate(first.plan)] if fits and first.plan is not None else []
            best = choose(problem, self.name, [Candidate(proof.plan), *others])
        if best.status is PlanStatus.INFEASIBLE:
            reason = "proven: no plan of this order fits" if proof.infeasible else "believed: none was found in time"
            return replace(best, stats=(*stats, ("proof", reason)))
        # `Auto` may beat the bound of the program's narrower class of plans; a bound above its own plan would be no
        # bound.
        bound = min(proof.bound_ns, best.added_ns)
        if bound == best.added_ns:
            stats = (*stats, ("proof", proof.method or "nothing is cheaper"))
            return replace(best, status=PlanStatus.OPTIMAL, lower_bound_ns=bound, stats=stats)
        return replace(best, lower_bound_ns=bound, stats=(*stats, ("proof", "stopped at the limit")))


def _explained(result: PlanResult, reason: str) -> PlanResult:
    """`result` with `reason`, which says what was proven or why nothing was tried."""
    return replace(result, stats=(*result.stats, ("proof", reason)))
