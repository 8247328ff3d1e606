"""The chain that a graph linearises to: cuts of the forward at few crossing bytes, and plans made of segments.

    forward   f0 f1 f2 | f3 f4 | f5 f6 f7        cuts 3 and 5, layers 1, 2, 3 (layer 0 is the input)
    crossing           3       5                 storages made before the cut and read by the forward after it

A value that crosses several cuts is part of each of their boundaries: residual streams, open skips, encoder memory.
Kept storages and results of pinned operators are saved in any case and cost a boundary nothing.

Each operator of the backward belongs to a *stage*, the segment whose values must be available: the largest segment of
which something is read for the first time from there on.  Stages only fall; a value read early, at the stage of a
later segment, is saved; one read again late (a tied weight, encoder memory) does not disturb them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isqrt

from remat_compiler.ir.graph import Phase
from remat_compiler.ir.plan import Plan
from remat_passes.chains.hong import Chain
from remat_passes.sequences.sequence import Order, StepIndex, recompute

NEAREST, FARTHEST = 0.3, 3.0
"""Window for the next cut, in target sizes from the one before."""
DEVIATION = 0.15
"""How much dearer a crossing byte is when the layer is one target size off its target."""


@dataclass(frozen=True, slots=True, eq=False)
class Forward:
    """The forward operators as a line of positions.

    Attributes:
        ops: Operators, in order.
        last_read: For each storage, the last position that reads it; -1 for none, and for storages that no
            forward operator makes or that are always available.
        made_at: For each storage, the position that makes it; -1 as above.
        crossing: Bytes that cross the cut before each position (one more than positions).
        made_bytes: Bytes made before each position (one more than positions).
    """

    ops: tuple[int, ...]
    made_at: list[int]
    last_read: list[int]
    crossing: list[int]
    made_bytes: list[int]

    @staticmethod
    def of(index: StepIndex) -> Forward:
        """The forward of `index`."""
        ops = tuple(i for i, phase in enumerate(index.phase) if phase is Phase.FORWARD)
        at_hand = index.always_at_hand()
        made_at, last_read = [-1] * len(at_hand), [-1] * len(at_hand)
        for position, i in enumerate(ops):
            for s in index.writes[i]:
                made_at[s] = -1 if at_hand[s] else position
            for s in index.reads[i]:
                # Positions ascend, so the last one written is the last reader.
                last_read[s] = position if made_at[s] >= 0 else -1
        # A value that must not be saved makes a cut useless: dearer than any other.
        forbidden = sum(index.size_bytes) + 1
        delta, made = [0] * (len(ops) + 1), [0] * len(ops)
        for s, start in enumerate(made_at):
            if start < 0:
                continue
            made[start] += index.size_bytes[s]
            # It crosses every cut after its maker up to its last reader: a difference of two entries.
            if last_read[s] > start:
                weight = forbidden if index.unsavable[s] else index.size_bytes[s]
                delta[start + 1] += weight
                delta[last_read[s] + 1] -= weight
        return Forward(ops, made_at, last_read, list(accumulate(delta)), [0, *accumulate(made)])

    def cuts(self, count: int) -> tuple[int, ...]:
        """About ``count - 1`` cut positions, at layers of about equal bytes, where few bytes cross."""
        total = self.made_bytes[-1]
        target = total / max(count, 1)
        found: list[int] = []
        here = 0.0
        # The rest stays whole if another cut would leave a layer smaller than the window allows.
        while target > 0 and total - here > (1 + NEAREST) * target:
            low = max(bisect_left(self.made_bytes, here + NEAREST * target), (found[-1] if found else 0) + 1)
            # At least one position, since a single operator may make more than the whole window.
            high = min(max(bisect_right(self.made_bytes, here + FARTHEST * target), low + 1), len(self.ops))
            # The last operator: no cut can stand after it.
            if low >= high:
                break
            aim = here + target
            best = min(
                range(low, high),
                key=lambda t: self.crossing[t] * (1 + DEVIATION * abs(self.made_bytes[t] - aim) / target),
            )
            found.append(best)
            here = self.made_bytes[best]
        return tuple(found)


def chain_of(index: StepIndex, order: Order, forward: Forward, cuts: Sequence[int]) -> Chain:
    """Sizes of the layers between `cuts`, for the algorithms of `hong`; layer 0 is the input.

    A storage that crosses more than sqrt(n) of n cuts is in some boundary for any choice, so it is left out of
    the checkpoints, each of which would pay for it again.
    """
    n = len(cuts) + 1
    checkpoint, content, gradient = [0] * (n + 2), [0] * (n + 1), [0] * (n + 1)
    used = [False] * len(forward.made_at)
    segment = [-1 if at < 0 else bisect_right(cuts, at) for at in forward.made_at]
    for stage, i in zip(stages_of(index, order, segment), order.backward):
        # Segments count from 0, layers from 1.
        gradient[stage + 1] += sum(index.size_bytes[s] for s in index.writes[i] if index.kept[s])
        for s in index.reads[i]:
            used[s] = True
    longest = isqrt(n)
    for s, made_at in enumerate(forward.made_at):
        if made_at < 0:
            continue
        # Layers that make it and that read it last; alive at the ends of all layers from the first to before the last.
        first, last = bisect_right(cuts, made_at) + 1, bisect_right(cuts, forward.last_read[s]) + 1
        # A value that dies within its layer, unread by the backward, is not held until then.
        if used[s] or last > first:
            content[first] += index.size_bytes[s]
        if last > first and (last - first <= longest or index.unsavable[s]):
            # Dearer than saving everything: such a cut is never chosen while another is left.
            weight = forward.made_bytes[-1] + 1 if index.unsavable[s] else index.size_bytes[s]
            checkpoint[first] += weight
            checkpoint[last] -= weight
    # The algorithms need content to be no less than gradient; the excess is freed before it is made.
    return Chain(tuple(accumulate(checkpoint[: n + 1])), tuple(map(max, content, gradient)), tuple(gradient))


def segmented_plan(index: StepIndex, order: Order, forward: Forward, cuts: Sequence[int]) -> Plan:
    """The plan that saves all that crosses `cuts` and recomputes each segment when the backward reaches it.

    The last segment is not recomputed: the backward begins with it.
    """
    segment = [-1 if at < 0 else bisect_right(cuts, at) for at in forward.made_at]
    last = len(cuts)
    saved = [made in (-1, last) or bisect_right(cuts, read) > made for made, read in zip(segment, forward.last_read)]
    stages = stages_of(index, order, segment)
    for stage, i in zip(stages, order.backward):
        for s in index.reads[i]:
            # Its segment is recomputed only later, at its own stage, so the value must be there already.
            saved[s] = saved[s] or segment[s] < stage
    return recompute(index, order, saved, stages)


def stages_of(index: StepIndex, order: Order, segment: Sequence[int]) -> list[int]:
    """Stage of each operator of the backward, see the module docstring.

    Args:
        index: The graph.
        order: Each operator once.
        segment: For each storage, the segment that makes it; -1 for those that are always available.
    """
    seen = [at < 0 for at in segment]
    stages: list[int] = []
    for i in order.backward:
        first = -1
        for s in index.reads[i]:
            # Later reads find the value alive, and do not ask for its segment again.
            if not seen[s]:
                seen[s] = True
                first = max(first, segment[s])
        stages.append(first)
    # The maximum from each operator to the end: so stages never rise.
    return list(accumulate(reversed(stages), max))[::-1]
