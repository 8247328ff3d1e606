"""Plans from a hierarchy: options for each block first, then one option for each block, under one budget.

    blocks      the forward is cut where few bytes cross, repeated parts into identical blocks (`blocks.repeats`)
    options     each distinct block is a problem of its own, with a Pareto set of sequences (`blocks.options`)
    chain       a dynamic program over the blocks chooses one option each, and which blocks run again as a whole
    moving      where values may be moved, plans for larger budgets come within it by moving what they save
    exact       the sequences are measured by the exact profile, finished by gap greedy if they are over the
                budget, and trimmed

The idea is that of rotor (Beaumont et al., Optimal checkpointing for heterogeneous chains, 2019) and of Rockmate
(Zhao et al., Rockmate: an efficient, fast, automatic and generic tool for re-materialization in PyTorch, 2023): rebuild
a block wholly, partly or more than once.  Deviation: options are found by a local search, not by integer programs,
which takes milliseconds a block; and peaks of the chain are estimates until they are measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from remat_compiler.ir.plan import PlanResult
from remat_compiler.ir.problem import RematProblem
from remat_passes.blocks.chain import BlockOptionCache, Segmentation, turns_within
from remat_passes.orders.early_order import early_orders
from remat_passes.planning.interface import Candidate, choose
from remat_passes.search.moving_search import SHARES, MovingSearch, budgets_of
from remat_passes.search.sequence_search import SequenceSearch
from remat_passes.sequences.candidate import SequenceCandidate
from remat_passes.sequences.sequence import Placement, baseline_order

FEWEST_TURNS = 3
BLOCK_COUNTS = (8, 14, 24, 48)
"""Numbers of blocks."""


@dataclass(frozen=True, slots=True)
class Hierarchical:
    """Options for blocks, identical ones once, and a dynamic program over the chain of blocks.

    Attributes:
        effort: Work allowed for each operator of the graph.
        seed: Start of the random numbers.
        counts: Numbers of blocks that are tried.
    """

    name: ClassVar[str] = "hierarchical"
    effort: int = 2_500
    seed: int = 1
    counts: tuple[int, ...] = BLOCK_COUNTS

    def plan(self, problem: RematProblem) -> PlanResult:
        """Answer `problem`; see `Planner.plan`.  The backward keeps its order."""
        if problem.moves:
            return self._moving(problem)
        search = SequenceSearch.of(problem, self.effort, self.seed, reorders=False)
        search.keep([search.base(baseline_order(search.index, placement)) for placement in Placement])
        # A sequence without recomputation that fits cannot be beaten.
        if not search.solved:
            search.keep([entry for entries in block_plans(search, self.counts, 1.0) for entry in entries])
        reference = [] if problem.reference is None else [Candidate(problem.reference)]
        return choose(problem, self.name, [*reference, Candidate(search.pool[0].plan())])

    def _moving(self, problem: RematProblem) -> PlanResult:
        """Plans for more memory than there is, brought within the budget by moving what the blocks save."""
        moving = MovingSearch.of(problem)
        budget_at = budgets_of(moving)
        for share in (0.0, *SHARES):
            result = self.plan(replace(problem, budget_bytes=budget_at(share), offload_bytes=0, reference=None))
            assert result.plan is not None
            moving.offer([result.plan])
        assert moving.best is not None
        found = [moving.best.plan, *([problem.reference] if problem.reference else [])]
        return choose(problem, self.name, [Candidate(plan) for plan in found])


def block_plans(search: SequenceSearch, counts: Sequence[int], share: float) -> Iterator[list[SequenceCandidate]]:
    """Entries over blocks, about as many as each of `counts`, best first for each cutting.

    Options of blocks take about `share` of the work left.
    """
    # Blocks follow an order, so each order of the forward or backward that may pay off is cut by itself.
    orders = [*early_orders(search.problem)[:1], baseline_order(search.index, Placement.LAZY)]
    orders += search.reordered(orders[0])
    found: list[tuple[Segmentation, SequenceCandidate]] = []
    for order in orders:
        base = search.base(order)
        found += [(cutting, base) for cutting in search.cuttings(order, base, counts)]
    # The number of turns depends on all blocks together, so every cutting is made before the first is solved.
    turns = turns_within([cutting for cutting, _ in found], int(share * search.work_left))
    library = BlockOptionCache(max(turns, FEWEST_TURNS))
    for cutting, base in found:
        yield sorted(search.block_seeds(cutting, library, base.peak), key=search.rank)
