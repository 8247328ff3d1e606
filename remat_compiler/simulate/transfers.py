"""When the copies of a plan's transfers run, and how long the step waits for them.

Operators run one after the other; beside them, each tier has a queue for copies out and one for copies back:

    copy out    begins when the instance is made and the copies made before it are out; the step `out_after`, which may
                take the instance's memory, waits for its end.  If only the backward waits, it begins with the backward
    copy back   begins when the step before `back_before` has run, for which the memory is allocated, and the copies
                asked for before it are back; the next step that reads the instance waits for its end, and so does the
                end of the forward

Copies take their bytes over the bandwidth of their direction, and a latency.  Where they slow operators down, the step
takes longer by a part of their time that does not pass in waiting (`Link.drag_percent`).  Beginning a copy takes time
of the step itself (`Link.begin_ns`).  Else it costs what is left of it once the operators beside it have run, as in
HOME (section 3.4, Figure 4), where copies do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from remat_compiler.ir.graph import TrainingGraph
from remat_compiler.ir.plan import Plan, Transfer, in_pages
from remat_compiler.simulate.arrays import GraphArrays, IntArray


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
        drag_ns: The part of it that operators lose because copies slow them down and have to be begun.
        copies: The copies of each transfer, in the order of `Plan.transfers`.
    """

    time_ns: int
    stall_ns: int
    drag_ns: int
    copies: tuple[Copies, ...]


def transfer_times(arrays: GraphArrays, steps: IntArray, boundary: int, transfers: Sequence[Transfer]) -> TransferTimes:
    """Times of executing a valid plan.

    Args:
        arrays: The step.  A tier without a link takes no time.
        steps: The plan's operators in order.
        boundary: First step of the backward.
        transfers: The plan's transfers.
    """
    # When each step begins, if none waits.
    begins: list[int] = list(accumulate(arrays.time_ns[steps].tolist(), initial=0))
    lives = transfer_lives(arrays, steps, boundary, transfers)
    links = {link.tier: link for link in arrays.links}
    queues = {(one.tier, back): 0 for one in transfers for back in (False, True)}
    out: dict[int, tuple[int, int]] = {}
    back: dict[int, tuple[int, int]] = {}
    late_ns = 0
    copied_ns, begun_ns = dict.fromkeys(links, 0), 0
    for step, kind, _, i in _events(transfers, lives):
        first = lives[i].first
        if kind == _GONE:
            late_ns = max(late_ns, out[first][1] - begins[step])
        elif kind == _READ:
            late_ns = max(late_ns, back[i][1] - begins[step])
        elif kind == _ASKED or i == first:
            one, is_back = transfers[first], kind == _ASKED
            size_bytes, link = int(arrays.size_bytes[one.storage]), links.get(one.tier)
            copy_ns = 0 if link is None else link.back_ns(size_bytes) if is_back else link.out_ns(size_bytes)
            if link is not None:
                copied_ns[one.tier] += copy_ns
                begun_ns += link.begin_ns
            asked_ns = late_ns + begins[step if is_back else step + 1]
            begin_ns = max(asked_ns, queues[one.tier, is_back])
            (back if is_back else out)[i] = begin_ns, begin_ns + copy_ns
            queues[one.tier, is_back] = begin_ns + copy_ns
    # Nobody is slowed down by a copy that the step waits for.
    slowed_ns = sum(max(ns - late_ns, 0) * links[tier].drag_percent // 100 for tier, ns in copied_ns.items())
    drag_ns = slowed_ns + begun_ns
    copies = tuple(Copies(*out[life.first], *back[i]) for i, life in enumerate(lives))
    return TransferTimes(begins[-1] + late_ns + drag_ns, late_ns, drag_ns, copies)


def moved_bytes(graph: TrainingGraph, plan: Plan) -> int:
    """What the plan's transfers take where they go, if nothing is given back before the step ends: whole pages."""
    return sum(in_pages(graph.storages[one.storage].size_bytes) for one in plan.transfers)


@dataclass(frozen=True, slots=True)
class TransferLife:
    """The steps around a transfer, which are those of its copies.

    Attributes:
        begun: The step after which the copy out begins: it makes the instance, or is the last one of the forward if the
            copy ends in the backward.
        read: The step before which the copy back has ended: the first that reads the instance, or the first one of the
            backward if the copy begins in the forward.
        first: Number of the first transfer of the same instance.  What that copied out still is there, in its tier, so
            later ones copy nothing out.
    """

    begun: int
    read: int
    first: int


def transfer_lives(
    arrays: GraphArrays, steps: Sequence[int] | IntArray, boundary: int, transfers: Sequence[Transfer]
) -> list[TransferLife]:
    """The steps around each transfer of a valid plan, in order; arguments as for `transfer_times`."""
    steps = np.asarray(steps, np.int64)
    op_of_read = np.repeat(np.arange(len(arrays.read_start) - 1), np.diff(arrays.read_start))
    op_of_write = np.repeat(np.arange(len(arrays.write_start) - 1), np.diff(arrays.write_start))
    is_of = np.zeros(len(arrays.time_ns), np.bool_)
    found: dict[int, TransferLife] = {}
    moved: dict[tuple[int, int], int] = {}
    for i in sorted(range(len(transfers)), key=lambda i: transfers[i].out_after):
        one = transfers[i]
        before, after = steps[: one.out_after], steps[one.back_before :]
        is_of[:] = False
        is_of[op_of_write[arrays.write_items == one.storage]] = True
        made = one.out_after - 1 - int(np.argmax(is_of[before][::-1]))
        # No copy is under way from one graph to the other, where nobody could wait for it.
        begun = max(made, boundary - 1) if one.out_after > boundary else made
        is_of[:] = False
        is_of[op_of_read[arrays.read_items == one.storage]] = True
        read = one.back_before + int(np.argmax(is_of[after]))
        read = min(read, boundary) if one.back_before < boundary else read
        found[i] = TransferLife(begun, read, moved.setdefault((one.storage, made), i))
    return [found[i] for i in range(len(transfers))]


_GONE, _ASKED, _READ, _MADE = range(4)
"""What happens around a step, in this order: memory is given up, copies back are asked for, and awaited; it has run."""


def _events(transfers: Sequence[Transfer], lives: Sequence[TransferLife]) -> list[tuple[int, int, int, int]]:
    """Step, kind, rank among equals, and number of the transfer, in order.

    Of copies that may begin at once, the one that is needed first goes first.
    """
    events = []
    for i, (one, life) in enumerate(zip(transfers, lives)):
        events += [
            (life.begun, _MADE, one.out_after, i),
            (one.out_after, _GONE, 0, i),
            (one.back_before, _ASKED, life.read, i),
            (life.read, _READ, 0, i),
        ]
    return sorted(events)
