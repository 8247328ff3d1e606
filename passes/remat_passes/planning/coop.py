"""Coop, run ahead of time in a simulated pool: tensors are placed and evicted so that what is freed is contiguous.

Source: Zhang, Ma, Liu, Yuan, *Coop: Memory is not a Commodity*, NeurIPS 2023.  Algorithm 1 decides where a result lies:

    in place        over an input that is evicted by it (section 3.5, recomputable in-place)
    else            at one end of the best free chunk: super-linear operators' results (products, convolutions) at its
                    left, all others at its right (section 3.4, cheap tensor partitioning)
    no free chunk   first evict the contiguous window of tensors and free chunks that is large enough and costs least
                    (section 3.3, sliding window), by h(t) = c(t) / s(t): the time of t's operator and of its evicted
                    neighbourhood, over its staleness; bytes count only in that they fill the window

The rest is DTR's: what was evicted is remade on access, and the neighbourhood is approximated by a union-find (see
`planning.dtr`).  As there, the run is simulated, so that the trace is the plan.

How the printed algorithm is read, where it and the text differ:

- As printed, the end of the chunk is chosen only after an eviction, and an allocation that finds a free chunk returns
  no address.  The text partitions tensors from the start ("a proper memory layout is prepared before tensor
  eviction"), so the choice is made for every allocation.
- As printed, an in-place operator takes its input's address without conditions.  Which operators of a captured graph
  were written in place is not known: here they are the pointwise ones, and the input is one of the same size that the
  program reads no more.
- The pool holds what the step allocates.  Parameters, which the paper puts at the two ends before the step since they
  are never evicted, live outside of it; gradients and outputs take their part (`eviction.pool_run`).

Running in place and placing gradients first each help most steps and hurt some: a result in place lies where its input
lay, whatever its class, and a place that is kept free is lost to the forward.  Being ahead of time, the planner tries
both ways and takes the cheapest trace that fits its pool.

The classes are by the operator's name, as the paper's are; where a graph has no super-linear operator by name, they
are those whose cost density is `DENSE` times the median, a little less than the order of magnitude of Table 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import ClassVar

import numpy as np

from remat_compiler.ir.graph import Op
from remat_compiler.ir.plan import PlanResult
from remat_compiler.ir.problem import RematProblem
from remat_passes.eviction.room import COOP, DTR, EXPENSIVE, OVERWRITES
from remat_passes.eviction.traces import PoolOptions, PoolTrace, pool_traces
from remat_passes.planning.pooled import choose_trace
from remat_passes.policies.kinds import is_convolution, is_product
from remat_passes.sequences.profile import IntArray

DENSE = 5
"""Times the median cost density from which an operator counts as expensive, where names tell nothing."""
POINTWISE = frozenset(
    (
        *("abs", "add", "addcdiv", "addcmul", "clamp", "clamp_min", "div", "elu", "erf", "exp", "gelu", "hardswish"),
        *("hardtanh", "leaky_relu", "log", "maximum", "minimum", "mul", "neg", "pow", "reciprocal", "relu", "relu6"),
        *("rsqrt", "rsub", "sigmoid", "silu", "softplus", "sqrt", "square", "sub", "tanh", "where"),
        *("elu_backward", "gelu_backward", "hardtanh_backward", "leaky_relu_backward", "sigmoid_backward"),
        *("silu_backward", "tanh_backward", "threshold_backward"),
    )
)
"""Operators of ATen that can write each element over the one that they read."""


@dataclass(frozen=True, slots=True)
class Coop:
    """Coop (Zhang et al. 2023): contiguous windows evicted from a simulated pool, cheap tensors kept apart.

    Attributes:
        window: Whether the cheapest window is evicted; else one tensor after another by DTR's heuristic.
        partition: Whether results of super-linear operators go to the left end of the pool, all others to the right.
        in_place: Whether pointwise operators may write over an input.  Runs without are tried as well.
        kept_first: Whether gradients and outputs may have their places before the step begins.  Runs without are tried
            as well.
        granularity: Bytes to whose multiples the pool rounds sizes.
        patience: Executions allowed for each operator, on average; after these nothing is evicted any more.
    """

    name: ClassVar[str] = "coop"
    window: bool = True
    partition: bool = True
    in_place: bool = True
    kept_first: bool = True
    granularity: int = 512
    patience: int = 20

    def plan(self, problem: RematProblem) -> PlanResult:
        """The cheapest trace that fits its pool; see `eviction.traces` for what follows if none does."""
        return choose_trace(problem, self.name, self.traces(problem))

    def traces(self, problem: RematProblem) -> list[PoolTrace]:
        """A trace for each placement of tangent-free operators, with and without what may be left out."""
        classes = operator_classes(problem)
        policy = COOP if self.window else DTR
        ways = product((True, False) if self.in_place else (False,), (True, False) if self.kept_first else (False,))
        return [
            trace
            for in_place, kept_first in ways
            for trace in pool_traces(
                problem,
                classes,
                PoolOptions(policy, self.partition, in_place, self.granularity, self.patience, kept_first),
            )
        ]


def operator_classes(problem: RematProblem) -> IntArray:
    """Whether each operator is expensive, and whether it may write over an input; see `eviction.room.Room.classes`."""
    classes = np.zeros((len(problem.graph.ops), 2), np.int64)
    for op in problem.graph.ops:
        classes[op.id, EXPENSIVE] = is_convolution(op) or is_product(op)
        classes[op.id, OVERWRITES] = is_pointwise(op)
    if not classes[:, EXPENSIVE].any():
        densities = {op.id: density for op in problem.graph.ops if (density := _cost_density(problem, op)) is not None}
        middle = median(densities.values()) if densities else 0.0
        for i, density in densities.items():
            classes[i, EXPENSIVE] = density > DENSE * middle
    return classes


def is_pointwise(op: Op) -> bool:
    """Whether `op` can write its result over an input of the same size."""
    return bool(POINTWISE & set(op.target.split(".")))


def _cost_density(problem: RematProblem, op: Op) -> float | None:
    """Nanoseconds for each byte of its results; `None` if there are none."""
    size = sum(problem.graph.storages[s].size_bytes for s in op.writes)
    return problem.costs.time_ns[op.id] / size if size else None
