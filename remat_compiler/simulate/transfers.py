"""When the copies of a plan's transfers run, and how long the step waits for them.

Operators run one after the other; beside them, each tier has a queue for copies out and one for copies back:

    copy out    begins when the instance is made and the copies made before it are out; the step `out_after`, which may
                take the instance's memory, waits for its end
    copy back   begins when the step before `back_before` has run, for which the memory is allocated, and the copies
                asked for before it are back; the next step that reads the instance waits for its end

Copies take their bytes over the bandwidth of their direction, and a latency; neither slows operators down, nor does one
direction the other.  A copy costs what is left of it once the operators beside it have run, as in HOME (section 3.4,
Figure 4), where copies do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from remat_compiler.ir.graph import TrainingGraph
from remat_compiler.ir.plan import Plan, Tier, Transfer
from remat_compiler.ir.problem import CostTable


@dataclass(frozen=True, slots=True)
class Link:
    """How fast values are copied to a tier and back.

    Attributes:
        out_bytes_per_s: Bandwidth from the device.
        back_bytes_per_s: Bandwidth to the device.
        latency_ns: Time of a copy of no bytes.
    """

    out_bytes_per_s: float
    back_bytes_per_s: float
    latency_ns: int = 0

    def out_ns(self, size_bytes: int) -> int:
        """Time of a copy from the device."""
        return self.latency_ns + round(size_bytes / self.out_bytes_per_s * 1e9)

    def back_ns(self, size_bytes: int) -> int:
        """Time of a copy to the device."""
        return self.latency_ns + round(size_bytes / self.back_bytes_per_s * 1e9)


@dataclass(frozen=True, slots=True)
class Copies:
    """The two copies of one transfer, as times from the begin of the step in nanoseconds."""

    out_begin_ns: int
    out_end_ns: int
    back_begin_ns: int
    back_end_ns: int


@dataclass(frozen=True, slots=True)
class TransferTimes:
    """A step with transfers.

    Attributes:
        time_ns: Time of the step, in which operators that repeat count again.
        stall_ns: The part of it in which an operator waits for a copy.
        copies: The copies of each transfer, in the order of `Plan.transfers`.
    """

    time_ns: int
    stall_ns: int
    copies: tuple[Copies, ...]


def transfer_times(graph: TrainingGraph, costs: CostTable, plan: Plan, links: Mapping[Tier, Link]) -> TransferTimes:
    """Times of executing a valid plan.

    Args:
        graph: The step.
        costs: Times of its operators.
        plan: The plan.
        links: How fast values are copied to each tier that the plan uses.
    """
    # When each step begins, if none waits.
    begins = list(accumulate((costs.time_ns[op] for op in plan.steps), initial=0))
    lives = [_life(graph, plan, one) for one in plan.transfers]
    queues = {(tier, back): 0 for tier in links for back in (False, True)}
    out: dict[int, tuple[int, int]] = {}
    back: dict[int, tuple[int, int]] = {}
    late_ns = 0
    for step, kind, _, i in _events(plan.transfers, lives):
        one = plan.transfers[i]
        size_bytes, link = graph.storages[one.storage].size_bytes, links[one.tier]
        if kind == _GONE:
            late_ns = max(late_ns, out[i][1] - begins[step])
        elif kind == _READ:
            late_ns = max(late_ns, back[i][1] - begins[step])
        else:
            copied, is_back = (back, True) if kind == _ASKED else (out, False)
            asked_ns = late_ns + (begins[step] if is_back else begins[step + 1])
            begin_ns = max(asked_ns, queues[one.tier, is_back])
            end_ns = begin_ns + (link.back_ns if is_back else link.out_ns)(size_bytes)
            copied[i] = begin_ns, end_ns
            queues[one.tier, is_back] = end_ns
    copies = tuple(Copies(*out[i], *back[i]) for i in range(len(lives)))
    return TransferTimes(begins[-1] + late_ns, late_ns, copies)


_GONE, _ASKED, _READ, _MADE = range(4)
"""What happens around a step, in this order: memory is given up, copies back are asked for, and awaited; it has run."""


def _events(transfers: Sequence[Transfer], lives: Sequence[tuple[int, int]]) -> list[tuple[int, int, int, int]]:
    """Step, kind, rank among equals, and number of the transfer, in order.

    Of copies that may begin at once, the one that is needed first goes first.
    """
    events = []
    for i, (one, (made, read)) in enumerate(zip(transfers, lives)):
        events += [
            (made, _MADE, one.out_after, i),
            (one.out_after, _GONE, 0, i),
            (one.back_before, _ASKED, read, i),
            (read, _READ, 0, i),
        ]
    return sorted(events)


def _life(graph: TrainingGraph, plan: Plan, one: Transfer) -> tuple[int, int]:
    """The step that makes the instance, and the first one that reads it after it is back."""
    ops = graph.ops
    made = max(step for step in range(one.out_after) if one.storage in ops[plan.steps[step]].writes)
    back = range(one.back_before, len(plan.steps))
    return made, next(step for step in back if one.storage in ops[plan.steps[step]].reads)
