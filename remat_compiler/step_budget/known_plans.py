"""Plans that were made in this process, by problem: what shares a budget asks for the same ones again and again.

Every round of sharing plans each graph at the same levels, and so does each of several equal graphs.  Planners are
deterministic, so a plan that is remembered is the one that would be found.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from threading import Lock

from remat_compiler.ir.fingerprint import fingerprint
from remat_compiler.ir.plan import PlanResult
from remat_compiler.ir.planner import Planner
from remat_compiler.ir.problem import RematProblem
from remat_compiler.plan_cache.cached_planner import KEPT, options_of, solved

MOST = 256
"""Plans that are remembered; the one that was not asked for for longest makes room."""


class KnownPlans:
    """Remembers plans, for any number of threads.

    Args:
        most: Plans that are remembered.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._lock = Lock()
        self._plans: OrderedDict[tuple[type, str, str], PlanResult] = OrderedDict()

    def planner(self, planner: Planner) -> Callable[[RematProblem], PlanResult]:
        """`planner.plan`, which is only called for what is not known yet."""
        options = options_of(planner)
        # Two planners of one class may differ in what cannot be told.
        if options is None:
            return partial(solved, planner)
        return lambda problem: self._plan(planner, (type(planner), options, _digest(problem)), problem)

    def _plan(self, planner: Planner, key: tuple[type, str, str], problem: RematProblem) -> PlanResult:
        with self._lock:
            known = self._plans.get(key)
            if known is not None:
                self._plans.move_to_end(key)
                return known
        # Outside of the lock: other threads plan meanwhile, at worst the same.
        found = solved(planner, problem)
        # A failure or a time-out may end better next time.
        if found.status in KEPT:
            with self._lock:
                self._plans[key] = found
                while len(self._plans) > self._most:
                    self._plans.popitem(last=False)
        return found


def _digest(problem: RematProblem) -> str:
    """The same for problems that a planner cannot tell apart."""
    # Planners may look at operators' names and modules, and plans that move values name storages by number.
    ops = [(op.name, op.target, op.module, op.reads, op.writes, op.replay) for op in problem.graph.ops]
    limits = (problem.budget_bytes, problem.max_added_ns, problem.offload_bytes, problem.reference)
    return hashlib.sha256(repr((fingerprint(problem), ops, limits)).encode()).hexdigest()
