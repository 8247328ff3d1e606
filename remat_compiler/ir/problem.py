"""The planner's problem: a graph, the cost of each operator, and the bytes that may be alive."""

from __future__ import annotations

from dataclasses import dataclass, field

from remat_compiler.ir.codec import OPTIONAL
from remat_compiler.ir.graph import TrainingGraph
from remat_compiler.ir.plan import Plan, Tier

UNLIMITED_BYTES = 2**62
"""The budget of a problem without a limit."""
NO_BYTES = 1
"""The budget by which a planner is asked for the smallest peak: no plan fits, and it answers with the lowest one."""


@dataclass(frozen=True, slots=True)
class CopyTime:
    """What a copy of one size takes.

    Attributes:
        size_bytes: The size, at least 1.
        out_ns: Time of a copy from the device, at least 1.
        back_ns: Time of a copy to the device, at least 1.
    """

    size_bytes: int
    out_ns: int
    back_ns: int


@dataclass(frozen=True, slots=True)
class Link:
    """How fast values are copied to a tier and back.

    Copies of up to the largest size of `curve` take what lies on the lines between its points, the first of which
    begins at `latency_ns` for no bytes; larger ones take the rest at the bandwidth.

    Attributes:
        tier: The tier.
        out_bytes_per_s: Bandwidth from the device, at least 1.
        back_bytes_per_s: Bandwidth to the device, at least 1.
        latency_ns: Time of a copy of no bytes.
        drag_percent: What operators lose while copies run beside them, in percent of that time: 0 where engines of
            their own copy, about 100 where processors copy that are busy with operators.
        curve: Measured times, by ascending size, none shorter than those before it: what is small stays in caches.
        begin_ns: Time that each copy takes from the step itself, since the processor that begins it hands out no
            operator meanwhile.  A device that has enough to do is not kept waiting by that; it counts all the same.
    """

    tier: Tier
    out_bytes_per_s: int
    back_bytes_per_s: int
    latency_ns: int = 0
    drag_percent: int = 0
    curve: tuple[CopyTime, ...] = field(default=(), metadata=OPTIONAL)
    begin_ns: int = field(default=0, metadata=OPTIONAL)

    def out_ns(self, size_bytes: int) -> int:
        """Time of a copy from the device."""
        points = [(point.size_bytes, point.out_ns) for point in self.curve]
        return self._copy_ns(size_bytes, points, self.out_bytes_per_s)

    def back_ns(self, size_bytes: int) -> int:
        """Time of a copy to the device."""
        points = [(point.size_bytes, point.back_ns) for point in self.curve]
        return self._copy_ns(size_bytes, points, self.back_bytes_per_s)

    @property
    def most_out_bytes_per_s(self) -> int:
        """No copies from the device together are faster than this, each rounded up to the next nanosecond."""
        # Bytes over time are monotone along a line, so they are most at its ends.
        return max(self.out_bytes_per_s, *(-(-one.size_bytes * 10**9 // one.out_ns) for one in self.curve), 1)

    @property
    def most_back_bytes_per_s(self) -> int:
        """The same for copies to the device."""
        return max(self.back_bytes_per_s, *(-(-one.size_bytes * 10**9 // one.back_ns) for one in self.curve), 1)

    def _copy_ns(self, size_bytes: int, points: list[tuple[int, int]], bytes_per_s: int) -> int:
        before, before_ns = 0, self.latency_ns
        for size, time_ns in points:
            if size_bytes <= size:
                return before_ns + (size_bytes - before) * (time_ns - before_ns) // (size - before)
            before, before_ns = size, time_ns
        return before_ns + (size_bytes - before) * 10**9 // bytes_per_s


@dataclass(frozen=True, slots=True)
class CostTable:
    """Cost of one execution of each operator, by `OpId`, and of copies.

    Attributes:
        time_ns: Nanoseconds, at least 0.
        workspace_bytes: Peak bytes that the operator allocates beyond its results while it runs; negative if its one
            result takes over the memory of an argument whose life certainly ends there: then less those bytes.
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
