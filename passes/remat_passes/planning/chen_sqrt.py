"""Sublinear memory cost: about sqrt(n) segments of equal bytes, each recomputed when the backward reaches it.

Source: Chen, Xu, Zhang, Guestrin, *Training Deep Nets with Sublinear Memory Cost*, 2016, section 4 and its
Algorithm 3, whose search over segment sizes around the square root is kept; the simulator judges.
Where we deviate: cuts stand where few bytes cross, not where the running sum first exceeds the segment size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

from remat_compiler.ir.plan import PlanResult
from remat_compiler.ir.problem import RematProblem
from remat_passes.chains.chain import Forward, segmented_plan
from remat_passes.planning.interface import Candidate, choose
from remat_passes.sequences.sequence import Placement, StepIndex, baseline_order


@dataclass(frozen=True, slots=True)
class ChenSqrt:
    """Segments of about equal bytes, in several numbers around sqrt(n) for n forward operators.

    Attributes:
        factors: Numbers of segments to try, as multiples of sqrt(n); 0 is one segment, saved whole.
    """

    name: ClassVar[str] = "chen_sqrt"
    factors: tuple[float, ...] = (0.0, 0.25, 0.5, 0.7, 1.0, 1.4, 2.0)

    def plan(self, problem: RematProblem) -> PlanResult:
        """The cheapest of the plans that fits the budget, or else the one of the smallest peak."""
        return choose(problem, self.name, self._candidates(StepIndex.of(problem.graph)))

    def _candidates(self, index: StepIndex) -> Iterator[Candidate]:
        """One plan for each placement and different set of cuts."""
        forward = Forward.of(index)
        root = sqrt(len(forward.ops))
        # Different factors can give the same cuts; the dictionary keeps their order, unlike a set.
        cut_sets = dict.fromkeys(forward.cuts(max(1, round(factor * root))) for factor in self.factors)
        for placement in Placement:
            order = baseline_order(index, placement)
            for cuts in cut_sets:
                stats = (("segments", str(len(cuts) + 1)), ("placement", placement.value))
                yield Candidate(segmented_plan(index, order, forward, cuts), stats)
