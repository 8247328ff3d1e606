"""The planner's problem: a graph, the cost of each operator, and the bytes that may be alive."""

from __future__ import annotations

from dataclasses import dataclass, field

from remat_compiler.ir.codec import OPTIONAL
from remat_compiler.ir.graph import TrainingGraph
from remat_compiler.ir.plan import Plan, Tier

UNLIMITED_BYTES = 2**62
"""The budget of a problem without a limit."""


@dataclass(frozen=True, slots=True)
class Link:
    """How fast values are copied to a tier and back.

    Attributes:
        tier: The tier.
        out_bytes_per_s: Bandwidth from the device, at least 1.
        back_bytes_per_s: Bandwidth to the device, at least 1.
        latency_ns: Time of a copy of no bytes.
        drag_percent: What operators lose while copies run beside them, in percent of that time: 0 where engines of
            their own copy, about 100 where processors copy that are busy with operators.
    """

    tier: Tier
    out_bytes_per_s: int
    back_bytes_per_s: int
    latency_ns: int = 0
    drag_percent: int = 0

    def out_ns(self, size_bytes: int) -> int:
        """Time of a copy from the device."""
        return self.latency_ns + size_bytes * 10**9 // self.out_bytes_per_s

    def back_ns(self, size_bytes: int) -> int:
        """Time of a copy to the device."""
        return self.latency_ns + size_bytes * 10**9 // self.back_bytes_per_s


@dataclass(frozen=True, slots=True)
class CostTable:
    """Cost of one execution of each operator, by `OpId`, and of copies.

    Attributes:
        time_ns: Nanoseconds, at least 0.
        workspace_bytes: Peak bytes that the operator allocates beyond its results while it runs; negative if a result
            takes over the memory of an argument whose life certainly ends there.
        provenance: Origin of each figure, such as ``roofline`` or ``measured``.
        links: The tiers that values can be moved to, each at most once; empty where nothing can be moved.
    """

    time_ns: tuple[int, ...]
    workspace_bytes: tuple[int, ...]
    provenance: tuple[str, ...]
    links: tuple[Link, ...] = field(default=(), metadata=OPTIONAL)

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
        offload_bytes: Most bytes that may be off the device at once.
    """

    graph: TrainingGraph
    costs: CostTable
    budget_bytes: int
    max_added_ns: int | None = None
    reference: Plan | None = None
    offload_bytes: int = field(default=0, metadata=OPTIONAL)

    @property
    def moves(self) -> bool:
        """Whether a plan may move values off the device."""
        return self.offload_bytes > 0 and bool(self.costs.links)
