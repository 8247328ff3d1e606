"""A policy: one action for each value that the backward reads, as HOME has it (section 3.3).

    value     conv1   bn1         relu1       conv2    ...
    action    MOVE    RECOMPUTE   RECOMPUTE   KEEP     ...

A value is a storage that the forward saves when nothing is recomputed.  A moved one leaves after its last use in the
forward and comes back for its next use; a recomputed one is made again just before its first use in the backward.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from remat_passes.sequences.profile import Arrays, BoolArray, IntArray

KEEP, MOVE, RECOMPUTE = range(3)
"""The actions."""


class Policies(NamedTuple):
    """The policies of one order of the step, as the compiled loops take them.

    Attributes:
        g: The problem.
        forward: Operators of the forward, in order.
        backward: Operators of the backward, in order.
        at_hand: For each storage, whether its first instance serves every read; see `StepIndex.always_at_hand`.
        values: Storages that a policy decides about, ascending.
        allowed: A row a value: which of the actions it may have.
        alike: For each value, the number of its group: values of the same size, made by the same kind of operator.
        group_sizes: Values in each group.
        out_ns: For each storage, the time of its copy from the device.
        back_ns: The same for the way back.
        drag_percent: See `Link.drag_percent`.
        begin_ns: See `Link.begin_ns`.
        pages_bytes: For each storage, what it takes off the device.
        room_bytes: What may be off the device.
        budget_bytes: Most bytes that may be alive.
    """

    g: Arrays
    forward: IntArray
    backward: IntArray
    at_hand: BoolArray
    values: IntArray
    allowed: BoolArray
    alike: IntArray
    group_sizes: IntArray
    out_ns: IntArray
    back_ns: IntArray
    drag_percent: int
    begin_ns: int
    pages_bytes: IntArray
    room_bytes: int
    budget_bytes: int


def within_room(p: Policies, actions: IntArray) -> IntArray:
    """Policies without the moves that find no room any more: the values after those that fill it are kept.

    Args:
        p: What the policies are of.
        actions: One policy, or a row for each.
    """
    moved = actions == MOVE
    taken = np.cumsum(np.where(moved, p.pages_bytes[p.values], 0), axis=-1)
    found: IntArray = np.where(moved & (taken > p.room_bytes), KEEP, actions)
    return found
