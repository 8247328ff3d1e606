"""A planner that searches the plan cache before it solves, and keeps the plans that it solves.

    problem ─► the same problem known? ─► verified, taken            exact hit
            ─► a similar size known?   ─► verified, worth it, taken  similar hit
            ─► solved, kept                                          miss, solve

Kept are plans within their budget, and the smallest peaks of planners that refused; a planner that failed or ran out of
time runs again next time.  A cached refusal answers the same problem only, never another size; of a planner that gives
one for every smaller budget, too (`refuses_smaller_alike`), also the problem without a single byte.

Ranks.  Planners are deterministic, so ranks of a distributed job that put the same problem (sizes, budget, times) to
the same solvers have the same plan, solved or cached.  That problems and solvers are the same is not ensured here: see
`distributed.agreement`.
Plans for similar sizes depend on what the cache of a rank has seen.  Such plans would still train right, since each
rank's forward and backward fit each other and the verifier keeps collectives in their order, but peaks and times would
differ between ranks.  So once `torch.distributed` is initialised, plans of other sizes are neither taken, nor used if
they were taken before.
"""

from __future__ import annotations

import hashlib
import sys
import time
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path

import torch

from remat_compiler.ir.fingerprint import fingerprint, parameter_sizes, structure
from remat_compiler.ir.plan import PlanResult, PlanStatus
from remat_compiler.ir.planner import Planner
from remat_compiler.ir.problem import NO_BYTES, RematProblem
from remat_compiler.log import logger_of
from remat_compiler.plan_cache.cache import PlanCache
from remat_compiler.plan_cache.key import (
    CachedPlan,
    CacheMiss,
    CacheQuery,
    PlanCacheKey,
    activation_bytes,
    size_class,
)
from remat_compiler.plan_cache.origin import FROM_CACHE, FROM_SIMILAR, made_at, marked
from remat_compiler.plan_cache.reuse import judge_same, judge_similar
from remat_compiler.stats import count, timed
from remat_compiler.units import format_bytes
from remat_compiler.version import __version__, installed_version

logger = logger_of(__name__)

SOLVERS = ("highspy", "pulp")
"""Packages of solvers, which planners ask for seeds and for regions: others find other optima of one program."""
KEPT = (PlanStatus.OPTIMAL, PlanStatus.FEASIBLE, PlanStatus.INFEASIBLE)


class CachedPlanner:
    """A planner with a cache.

    Args:
        planner: Solves problems that the cache does not know.
        cache: Where plans are kept; with `None` every problem is solved.
        max_slowdown: The option from which `RematProblem.max_added_ns` is computed.
        costs: Identity of the operators' times, see `costs.table.cost_identity`.
        parameters: Shapes of the parameters, if the problem does not tell them from other inputs.
        similar: Whether plans of other sizes may be taken.
    """

    def __init__(
        self,
        planner: Planner,
        cache: PlanCache | None,
        *,
        max_slowdown: float | None,
        costs: str,
        parameters: str,
        similar: bool,
    ) -> None:
        self.planner = planner
        self.options = options_of(planner)
        # A planner whose options cannot be told has no key.
        self.cache = None if self.options is None else cache
        self.max_slowdown = max_slowdown
        self.costs = costs
        self.parameters = parameters
        self.similar = similar

    def plan(self, problem: RematProblem) -> PlanResult:
        """Answer `problem` from the cache, else by the planner; see `Planner.plan`."""
        if self.cache is None:
            return solved(self.planner, problem)
        with timed("lookup_s"):
            question = self.question(problem)
            refused: list[str] = []
            # The same problem first: its plan needs no judgement of its worth.
            found = self._same(self.cache, question, problem, refused)
            if found is None and self.similar:
                found = self._similar(self.cache, question, problem, refused)
            if found is not None:
                return found
            count("misses")
            self.cache.note_miss(CacheMiss(question, time.time_ns(), tuple(refused)))
        result = solved(self.planner, problem)
        # A failure or a time-out may end better next time, so it is not kept.
        if result.status in KEPT and result.plan is not None:
            with timed("lookup_s"):
                self._keep(self.cache, question, problem, result)
        return result

    def _keep(self, cache: PlanCache, question: CacheQuery, problem: RematProblem, result: PlanResult) -> None:
        """Keep an answer; a refusal also answers for the smallest peak, which is asked for next."""
        asked = [question]
        if result.status is PlanStatus.INFEASIBLE and getattr(self.planner, "refuses_smaller_alike", False):
            asked.append(replace(question, key=replace(question.key, budget_bytes=NO_BYTES)))
        for one in asked:
            cache.keep(CachedPlan(one, "", problem.costs.step_ns, time.time_ns(), result))

    def question(self, problem: RematProblem) -> CacheQuery:
        """The query of the cache for `problem`."""
        size = activation_bytes(problem)
        package, solvers = type(self.planner).__module__.split(".")[0], tuple(map(installed_version, SOLVERS))
        key = PlanCacheKey(
            structure=structure(problem),
            parameters=hashlib.sha256(f"{parameter_sizes(problem)} {self.parameters}".encode()).hexdigest(),
            size_class=size_class(size),
            budget_bytes=problem.budget_bytes,
            offload_bytes=problem.offload_bytes,
            max_slowdown=self.max_slowdown,
            planner=self.planner.name,
            planner_options=self.options or "",
            costs=self.costs,
            versions=repr((__version__, torch.__version__, solvers, code_digest(package))),
        )
        return CacheQuery(key, _exact(problem), size)

    def _same(
        self, cache: PlanCache, question: CacheQuery, problem: RematProblem, refused: list[str]
    ) -> PlanResult | None:
        """The plan of the same problem; why it is not taken goes to `refused`."""
        entry = cache.find(question)
        # A plan from another size depends on what this rank's cache has seen.
        if entry is None or (entry.seed and not self.similar):
            return None
        judged = judge_same(problem, entry)
        if judged.result is None:
            # Entries are written by this project alone, so this is a file that someone changed.
            logger.warning("ignored the cached plan %s: %s; it is solved again", question.name, judged.refusal)
            refused.append(f"the plan of the same problem: {judged.refusal}")
            return None
        count("exact_hits")
        # A plan that was taken from another size has its mark already.
        return judged.result if entry.seed else marked(judged.result, FROM_CACHE, made_at(entry))

    def _similar(
        self, cache: PlanCache, question: CacheQuery, problem: RematProblem, refused: list[str]
    ) -> PlanResult | None:
        """The fastest plan of a similar size that may be taken; why others are not goes to `refused`."""
        taken: list[tuple[PlanResult, CachedPlan]] = []
        for entry in cache.similar(question):
            judged = judge_similar(problem, entry)
            if judged.result is not None:
                taken.append((judged.result, entry))
            else:
                size = format_bytes(entry.question.activation_bytes)
                refused.append(f"the plan for activations of {size}: {judged.refusal}")
        if not taken:
            return None
        # Peak and digest break ties, so that equal caches give equal plans.
        result, entry = min(taken, key=lambda one: (one[0].added_ns, one[0].peak_bytes, one[1].question.exact))
        count("similar_hits")
        sizes = f"activations of {format_bytes(entry.question.activation_bytes)}"
        result = marked(
            result, FROM_SIMILAR, f"{made_at(entry)} for {sizes}, here {format_bytes(question.activation_bytes)}"
        )
        # Kept under its own problem, so that the next process takes this one, whatever it has cached by then.
        cache.keep(CachedPlan(question, entry.question.exact, problem.costs.step_ns, entry.made_at_ns, result))
        return result


def solved(planner: Planner, problem: RematProblem) -> PlanResult:
    """The planner's answer, counted with its seconds in `Stats`."""
    count("solves")
    with timed("planning_s"):
        return planner.plan(problem)


def may_take_similar() -> bool:
    """Whether plans of other sizes may be taken: not if other ranks might take others, see the module docstring."""
    return not (torch.distributed.is_available() and torch.distributed.is_initialized())


def options_of(planner: object) -> str | None:
    """The options of a planner as text, in the order of its fields; `None` if it is not a dataclass."""
    if not is_dataclass(planner):
        return None
    return ", ".join(f"{field.name}={getattr(planner, field.name)!r}" for field in fields(planner))


@cache
def code_digest(package: str) -> str:
    """Digest of the sources of an imported package or module: plans of other code are other plans.

    Returns:
        64 hexadecimal digits; empty if there are no sources.
    """
    module = sys.modules.get(package)
    file = getattr(module, "__file__", None)
    folders = [Path(folder) for folder in getattr(module, "__path__", ())]
    files = [(path.relative_to(folder), path) for folder in folders for path in folder.rglob("*.py")]
    # A module of a single file, such as a planner in a script.
    if not folders and file is not None:
        files = [(Path(Path(file).name), Path(file))]
    if not files:
        return ""
    text = hashlib.sha256()
    # With its name, since moving a text to another file changes the code, too.
    for name, path in sorted(files):
        text.update(f"{name.as_posix()}\n".encode())
        text.update(path.read_bytes())
    return text.hexdigest()


def _exact(problem: RematProblem) -> str:
    """Digest of everything that a planner sees of `problem`, except its budget, which is in the key."""
    return hashlib.sha256(repr((fingerprint(problem), problem.max_added_ns, problem.reference)).encode()).hexdigest()
