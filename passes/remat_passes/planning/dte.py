"""Dynamic Tensor Evicting, run ahead of time in a simulated pool: DTR's heuristic, with the free bytes beside a tensor.

Source: Hu et al., *MegTaiChi: Dynamic Tensor-Based Memory Management Optimization for DNN Training*, ICS 2022, as Zhang
et al., *Coop*, NeurIPS 2023, describe and compare it (section 2.2, Table 2): the heuristic of `planning.dtr` with the
bytes of the adjacent free chunks counted as a tensor's own, so that tensors beside free memory go first:

    h(t) = c(t) / ((bytes(t) + free bytes on both sides of t) * staleness(t))

One tensor after another is evicted until a free chunk is large enough.  As in that comparison, values are only
recomputed, never moved, and the number of times that a tensor was computed does not count (its coefficient is 1).
Where we deviate: as `planning.dtr` does; everything is placed at the left end of the best free chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from remat_compiler.ir.plan import PlanResult
from remat_compiler.ir.problem import RematProblem
from remat_passes.eviction.room import DTE
from remat_passes.eviction.traces import PoolOptions, PoolTrace, pool_traces
from remat_passes.planning.coop import operator_classes
from remat_passes.planning.pooled import choose_trace


@dataclass(frozen=True, slots=True)
class Dte:
    """Dynamic Tensor Evicting (Hu et al. 2022) in a simulated pool: DTR that prefers tensors beside free memory.

    Attributes:
        granularity: Bytes to whose multiples the pool rounds sizes.
        patience: Executions allowed for each operator, on average; after these nothing is evicted any more.
    """

    name: ClassVar[str] = "dte"
    granularity: int = 512
    patience: int = 20

    def plan(self, problem: RematProblem) -> PlanResult:
        """The cheapest trace that fits its pool; see `eviction.traces` for what follows if none does."""
        return choose_trace(problem, self.name, self.traces(problem))

    def traces(self, problem: RematProblem) -> list[PoolTrace]:
        """A trace for each placement of tangent-free operators."""
        options = PoolOptions(
            policy=DTE,
            ends=False,
            in_place=False,
            granularity=self.granularity,
            patience=self.patience,
            kept_first=False,
        )
        return list(pool_traces(problem, operator_classes(problem), options))
