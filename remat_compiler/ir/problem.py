"""The planner's problem: a graph, the cost of each operator, and the bytes that may be alive."""

from __future__ import annotations

from dataclasses import dataclass

from remat_compiler.ir.graph import TrainingGraph
from remat_compiler.ir.plan import Plan

UNLIMITED_BYTES = 2**62
"""The budget of a problem without a limit."""


@dataclass(frozen=True, slots=True)
class CostTable:
    """Cost of one execution of each operator, by `OpId`.

    Attributes:
        time_ns: Nanoseconds, at least 0.
        workspace_bytes: Peak bytes that the operator allocates beyond its results while it runs; negative if a result
            takes over the memory of an argument whose life certainly ends there.
        provenance: Origin of each figure, such as ``roofline`` or ``measured``.
    """

    time_ns: tuple[int, ...]
    workspace_bytes: tuple[int, ...]
    provenance: tuple[str, ...]

    @property
    def step_ns(self) -> int:
        """Time of a step that executes every operator once."""
        return sum(self.time_ns)


@dataclass(frozen=True, slots=True)
class RematProblem:
    """Find the cheapest plan whose peak stays within the budget.

    Attributes:
        graph: The step.
        costs: Cost of each operator of `graph`.
        budget_bytes: Largest peak allowed, in bytes, resident storages not counted.
        max_added_ns: Largest added time allowed, or `None` for no limit.
        reference: The partition that the inner compiler would choose without a budget, if known.
    """

    graph: TrainingGraph
    costs: CostTable
    budget_bytes: int
    max_added_ns: int | None = None
    reference: Plan | None = None
