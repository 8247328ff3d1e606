"""A plan: the whole step as a sequence of operators in which operators may repeat.

Nothing else is needed to say what is saved, recomputed, or recomputed several times:

- A read means the latest instance of a storage; for a storage that the caller keeps, the first one.
- An instance lives from the step that makes it to its last read before the next instance is made,
  a kept storage's first instance to the end of the step.
- An instance that is alive across `boundary` is what the forward saves for the backward.

Besides the steps a plan has transfers, which keep an instance off the device for some of its life.  The operators,
their order and the lives of the instances are the same with and without them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from remat_compiler.ir.codec import OPTIONAL
from remat_compiler.ir.graph import OpId, Phase, StorageId, TrainingGraph


class Decision(str, Enum):
    """Fate of a forward storage that the backward needs."""

    SAVE = "save"
    RECOMPUTE = "recompute"
    OFFLOAD = "offload"


class PlanStatus(str, Enum):
    """How a planner ended; INFEASIBLE (proved or given up at the floor) differs from TIMED_OUT."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    TIMED_OUT = "timed_out"
    FAILED = "failed"


FITTING = (PlanStatus.OPTIMAL, PlanStatus.FEASIBLE)
"""Statuses of planners whose plan is within the budget."""


class Tier(str, Enum):
    """The memory that holds a value while it is off the device."""

    HOST = "host"
    DISK = "disk"


PAGE_BYTES = 4096
"""Memory off the device is given out in multiples of it, as disks and pinned memory are."""


def in_pages(size_bytes: int) -> int:
    """`size_bytes` rounded up to whole pages."""
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


@dataclass(frozen=True, slots=True)
class Transfer:
    """One instance off the device for some steps.

    It is the latest instance of `storage` that was made before step `out_after`; its bytes are off the device in the
    steps `out_after` to `back_before` (half-open).

    Attributes:
        storage: Storage of the instance.
        out_after: Number of steps that have run when its copy is complete and its memory is free.
        back_before: The step before which its memory is allocated again; it is full when it is read next.
        tier: The memory that holds it meanwhile.
    """

    storage: StorageId
    out_after: int
    back_before: int
    tier: Tier = Tier.HOST


@dataclass(frozen=True, slots=True)
class Plan:
    """Execution order of one step.

    Attributes:
        steps: Operators in order; an operator may stand several times.
        boundary: Index in `steps` of the first step of the backward graph.
        transfers: Instances that are off the device in some of the steps.
    """

    steps: tuple[OpId, ...]
    boundary: int
    transfers: tuple[Transfer, ...] = field(default=(), metadata=OPTIONAL)

    @staticmethod
    def saving_all(graph: TrainingGraph) -> Plan:
        """The plan that executes every operator of `graph` once."""
        # Tangent-free operators go to the backward, which alone needs them.
        forward = [op.id for op in graph.ops if op.phase is Phase.FORWARD]
        rest = [op.id for op in graph.ops if op.phase is not Phase.FORWARD]
        return Plan((*forward, *rest), len(forward))


@dataclass(frozen=True, slots=True)
class PlanResult:
    """The answer of a planner.

    Attributes:
        status: How the planner ended.
        planner: Name of the planner whose plan this is (a portfolio names the winner).
        plan: The plan; with INFEASIBLE, the plan of the smallest peak found, if any.
        peak_bytes: The simulator's peak of `plan`.
        time_ns: Time of the step under `plan`.
        added_ns: `time_ns` less the time of executing each operator once.
        lower_bound_ns: Proven lower bound of `added_ns`.
        stats: Names and values that the planner wants to report, in its own words.
    """

    status: PlanStatus
    planner: str
    plan: Plan | None
    peak_bytes: int = 0
    time_ns: int = 0
    added_ns: int = 0
    lower_bound_ns: int = 0
    stats: tuple[tuple[str, str], ...] = field(default=())
