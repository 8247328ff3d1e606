"""Dynamic Tensor Rematerialization in a simulated pool, where freed bytes serve a request only if they are contiguous.

`planning.dtr` takes any free bytes for a request, as the paper's own simulator does.  In a framework's pool, a tensor
needs one free chunk: tensors are evicted, least h first, until there is one.  With that DTR Zhang et al., *Coop*,
NeurIPS 2023, compare (section 2.2, Figure 2b), and its fragmentation is what Coop avoids.  Source, heuristic and
deviations as `planning.dtr`; everything is placed at the left end of the best free chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from remat_compiler.ir.plan import PlanResult
from remat_compiler.ir.problem import RematProblem
from remat_passes.eviction.room import DTR
from remat_passes.eviction.traces import PoolOptions, PoolTrace, pool_traces
from remat_passes.planning.coop import operator_classes
from remat_passes.planning.pooled import choose_trace


@dataclass(frozen=True, slots=True)
class DtrPool:
    """Dynamic Tensor Rematerialization in a simulated pool: evicts until a free chunk is large enough.

    Attributes:
        granularity: Bytes to whose multiples the pool rounds sizes.
        patience: Executions allowed for each operator, on average; after these nothing is evicted any more.
    """

    name: ClassVar[str] = "dtr_pool"
    granularity: int = 512
    patience: int = 20

    def plan(self, problem: RematProblem) -> PlanResult:
        """The cheapest trace that fits its pool; see `eviction.traces` for what follows if none does."""
        return choose_trace(problem, self.name, self.traces(problem))

    def traces(self, problem: RematProblem) -> list[PoolTrace]:
        """A trace for each placement of tangent-free operators."""
        options = PoolOptions(
            policy=DTR,
            ends=False,
            in_place=False,
            granularity=self.granularity,
            patience=self.patience,
            kept_first=False,
        )
        return list(pool_traces(problem, operator_classes(problem), options))
