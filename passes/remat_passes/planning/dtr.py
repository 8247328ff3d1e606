"""Dynamic Tensor Rematerialization, run ahead of time: evict by a heuristic when memory is short, remake on access.

Source: Kirisame, Lyubomirsky, Haan, Brennan, He, Roesch, Chen, Tatlock, *Dynamic Tensor Rematerialization*, ICLR 2021
(arXiv 2006.09616): section 3 for the algorithm, section 4.1 for the heuristic, appendix C.2 for its relaxation.
Operators run in program order.  Before an operator runs, those of its inputs that were evicted are remade, by running
their producers in the same way; its inputs are locked meanwhile.  While its results do not fit, the resident storage of
the least

    h(s) = (c(s) + sum of c over the evicted neighbourhood of s) / (bytes(s) * staleness(s))

is evicted.  There c is the time of its producer, staleness the time since it was last read or made, and the evicted
neighbourhood the evicted storages that would have to be remade along with s.  As the paper proposes (h_DTR-eq), the
neighbourhood is approximated by a union-find of evicted components: a component's cost falls by c(s) when s is remade,
while its shape stays.  A storage that the program reads no more is evicted at once (eager eviction), and given up for
good (banished) when nothing can need it.

Where we deviate: the run is simulated, so the trace is the plan, and repetitions that nobody reads are dropped from
it; results of the backward are not evicted while they are still to be read, since plans never repeat backward
operators; staleness of zero counts as one nanosecond.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from remat_compiler.ir.graph import OpId
from remat_compiler.ir.plan import Plan, PlanResult
from remat_compiler.ir.problem import RematProblem
from remat_passes.eviction.memory import last_needs, run
from remat_passes.planning.interface import Candidate, choose
from remat_passes.sequences.profile import arrays_of
from remat_passes.sequences.sequence import (
    Placement,
    StepIndex,
    baseline_order,
    drop_dead_repeats,
    recompute,
)


@dataclass(frozen=True, slots=True)
class Dtr:
    """Dynamic Tensor Rematerialization (Kirisame et al. 2021), simulated ahead of time; its trace is the plan.

    Attributes:
        patience: Executions allowed for each operator, on average; after these nothing is evicted any more.
    """

    name: ClassVar[str] = "dtr"
    patience: int = 20

    def plan(self, problem: RematProblem) -> PlanResult:
        """The trace that fits the budget and costs least, or else the one of the smallest peak."""
        return choose(problem, self.name, self._candidates(problem))

    def _candidates(self, problem: RematProblem) -> Iterator[Candidate]:
        """No eviction at all, and the trace under the budget, for each placement of tangent-free operators."""
        index = StepIndex.of(problem.graph)
        arrays = arrays_of(problem)
        for placement in Placement:
            order = baseline_order(index, placement)
            yield Candidate(recompute(index, order, index.all_savable()), _stats(placement, 0))
            steps, boundary, evictions, _ = run(
                arrays,
                np.array((*order.forward, *order.backward), np.int64),
                len(order.forward),
                problem.budget_bytes,
                last_needs(index, order),
                self.patience * (len(index.phase) + 1),
            )
            plan = Plan(tuple(map(OpId, steps.tolist())), int(boundary))
            # The run did not know yet which remade values would be evicted again unread.
            yield Candidate(drop_dead_repeats(index, plan), _stats(placement, int(evictions)))


def _stats(placement: Placement, evictions: int) -> tuple[tuple[str, str], ...]:
    return (("evictions", str(evictions)), ("placement", placement.value))
