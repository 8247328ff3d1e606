"""The choice of instants to link with the best one, and the bound that the linked program of `windows` proves.

Two ways to choose complement each other.  If many instants after the best one bind, the highest of each of several
equal parts are taken.  If one other instant binds, late in a backward whose gradients have piled up, it is found by
the linear relaxations of pairs, which take a fraction of the time of the integer program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from remat_passes.bounds.instant import Instant
from remat_passes.bounds.one_instant import proven_ns
from remat_passes.bounds.pricing import Pricing
from remat_passes.bounds.windows import in_a_row, windows_program
from remat_passes.exact.backends import SolverOptions
from remat_passes.exact.solver import SolveStatus, solve


@dataclass(frozen=True, slots=True)
class LinkedBound:
    """The result of a linked program.

    Attributes:
        bound_ns: Lower bound of the added time.
        instants: Instants of the program.
        infeasible: Proven that no plan keeps the budget.
    """

    bound_ns: int
    instants: int
    infeasible: bool


class Linked:
    """The instant of one operator with later ones.

    Args:
        part: The plans, with the priced instants.
        op: The operator.
        options: How to solve.
        largest: Variables of the largest program that is solved.
    """

    def __init__(self, part: Pricing, op: int, options: SolverOptions, largest: int) -> None:
        self.part, self.op, self.options, self.largest = part, op, options, largest

    def best_partner(self, candidates: Sequence[int]) -> int | None:
        """The candidate with which the linear relaxation is highest; `None` if none surely follows `op`."""
        best: tuple[int, int] | None = None
        for other in candidates:
            found = self._solved([other], whole=False)
            if found is not None and (best is None or found.bound_ns > best[0]):
                best = found.bound_ns, other
        return None if best is None else best[1]

    def bound_ns(self, others: Sequence[int]) -> LinkedBound | None:
        """The bound with `others`; `None` if none of them surely follows, or the program is too large."""
        return self._solved(others, whole=True)

    def _solved(self, others: Sequence[int], whole: bool) -> LinkedBound | None:
        part = self.part
        # Rows link an instant with the next only if its operator surely ran before.
        instants = in_a_row([Instant.of(part.graph, i, part.order) for i in [self.op, *others]])
        # Most programs have about as many variables; building one takes longer than its relaxation.
        if len(instants) < 2 or 3 * len(instants) * sum(part.graph.live) > 2 * self.largest:
            return None
        model = windows_program(part.graph, instants, part.budget, whole)
        if len(model.variables()) > self.largest:
            return None
        solution = solve(model, self.options)
        # The program is a relaxation, so without a solution no plan fits either; a bound of it would mean nothing.
        infeasible = solution.status is SolveStatus.INFEASIBLE
        return LinkedBound(0 if infeasible else proven_ns(solution), len(instants), infeasible)
