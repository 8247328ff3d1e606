"""A plan with its backward in another order, for tests that look at the order alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from remat_compiler.ir.graph import OpId
from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import RematProblem
from remat_passes.orders.order_backward import freedom_of, reorder
from remat_passes.sequences.profile import arrays_of


def order_backward(problem: RematProblem, plan: Plan, target_bytes: int = 0) -> Plan:
    """`plan` with its backward in an order of lower peak, or as it is; `target_bytes` is a peak low enough."""
    steps = np.array(plan.steps, np.int64)
    better, _ = reorder(arrays_of(problem), freedom_of(problem.graph), steps, plan.boundary, target_bytes)
    return replace(plan, steps=tuple(map(OpId, better.tolist())))
