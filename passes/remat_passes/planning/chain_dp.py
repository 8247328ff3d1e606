"""Optimal checkpoints of the chain that the graph linearises to: Hong et al.'s, and rotor's for the budget.

Sources: Hong et al., *GPU Memory Usage Optimization for Backward Propagation*, see `chains.hong`; Beaumont et al., see
`chains.rotor`.  Hong's algorithms minimise their model's peak with each layer recomputed once, and know neither time
nor budget.  Rotor takes the budget, minimises time, and recomputes a layer as often as pays.  The simulator judges
which plan is best.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from remat_compiler.ir.plan import PlanResult
from remat_compiler.ir.problem import RematProblem
from remat_passes.chains.chain import Forward, chain_of, segmented_plan
from remat_passes.chains.hong import Chain, Selection, select_linear, select_quadratic, select_static
from remat_passes.chains.rotor import LONGEST, persistent_plans, work_of
from remat_passes.planning.interface import Candidate, choose
from remat_passes.sequences.sequence import Order, Placement, StepIndex, baseline_order


class Algorithm(str, Enum):
    """Which algorithm of the paper chooses the checkpoints."""

    CUBIC = "cubic"
    """Algorithm 3: checkpoints plus largest segment, O(n^3)."""
    QUADRATIC = "quadratic"
    """Algorithm 5: what PyTorch holds, O(n^2)."""
    LINEAR = "linear"
    """Algorithm 6: the objective of Algorithm 5 in O(n)."""

    def select(self, chain: Chain) -> Selection:
        """The algorithm's checkpoints of `chain`."""
        if self is Algorithm.CUBIC:
            return select_static(chain)
        return select_quadratic(chain) if self is Algorithm.QUADRATIC else select_linear(chain)

    @property
    def longest_chain(self) -> int:
        """Layers that the algorithm handles in a fraction of a second."""
        return 48 if self is Algorithm.CUBIC else 1000


@dataclass(frozen=True, slots=True)
class ChainDp:
    """Checkpoints of a chain: the smallest peak, and the least time within the budget.

    Attributes:
        algorithm: Which algorithm chooses the checkpoints.
        granularities: Numbers of layers to linearise into; a number beyond what the algorithm handles is reduced.
            A single layer means to save everything.
        persistent: The same for schedules that recompute layers several times; if each operator can be a layer of
            its own, only that is tried.  An empty tuple leaves these schedules out.
    """

    name: ClassVar[str] = "chain_dp"
    algorithm: Algorithm = Algorithm.LINEAR
    granularities: tuple[int, ...] = (1, 12, 24, 48, 192)
    persistent: tuple[int, ...] = (24, 48, 100)

    def plan(self, problem: RematProblem) -> PlanResult:
        """The cheapest of the plans that fits the budget, or else the one of the smallest peak."""
        return choose(problem, self.name, self._candidates(problem, StepIndex.of(problem.graph)))

    def persistent_work(self, operators: int) -> int:
        """Work of the schedules that recompute layers several times, about, for so many operators of the forward."""
        return sum(map(work_of, self._layer_counts(operators)))

    def _layer_counts(self, operators: int) -> tuple[int, ...]:
        """Numbers of layers of those schedules: each operator by itself where that can be."""
        # Cuts between all operators lose nothing, but the program takes the cube of the layers.
        if not self.persistent or operators == 0:
            return ()
        return (operators,) if operators <= LONGEST else tuple(min(count, LONGEST) for count in self.persistent)

    def _candidates(self, problem: RematProblem, index: StepIndex) -> Iterator[Candidate]:
        """One plan for each placement and different set of checkpoints, and then the persistent ones."""
        forward = Forward.of(index)
        counts = dict.fromkeys(min(count, Algorithm(self.algorithm).longest_chain) for count in self.granularities)
        for placement in Placement:
            order = baseline_order(index, placement)
            # Keyed by the cuts: several numbers of layers often end at the same checkpoints.
            chosen = {self._checkpoints(index, order, forward, count): count for count in counts}
            for cuts, count in chosen.items():
                stats = (
                    ("algorithm", Algorithm(self.algorithm).value),
                    ("layers", str(count)),
                    ("segments", str(len(cuts) + 1)),
                    ("placement", placement.value),
                )
                yield Candidate(segmented_plan(index, order, forward, cuts), stats)

        # Rotor's program holds states wherever that pays, and would save values that must not be saved.
        if not any(index.unsavable):
            yield from self._persistent(problem, index, forward)

    def _persistent(self, problem: RematProblem, index: StepIndex, forward: Forward) -> Iterator[Candidate]:
        """Plans of several repetitions, for each different set of layers."""
        order = baseline_order(index, Placement.LAZY)
        operators = len(forward.ops)
        counts = self._layer_counts(operators)
        chosen = [forward.cuts(n) if n < operators else tuple(range(1, operators)) for n in counts]
        for cuts in dict.fromkeys(chosen):
            for plan in persistent_plans(problem, index, order, forward, cuts):
                yield Candidate(plan, (("algorithm", "persistent"), ("layers", str(len(cuts) + 1))))

    def _checkpoints(self, index: StepIndex, order: Order, forward: Forward, count: int) -> tuple[int, ...]:
        """Cut positions at the ends of the checkpoints of a chain of about `count` layers."""
        cuts = forward.cuts(count)
        selection = Algorithm(self.algorithm).select(chain_of(index, order, forward, cuts))
        # Layer i ends at cut i - 1; the last layer's output is no cut.
        return tuple(cuts[layer - 1] for layer in selection.checkpoints if layer <= len(cuts))
