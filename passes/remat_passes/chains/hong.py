"""Checkpoint selection on a linear chain: Algorithms 3, 5 and 6 of Hong et al.

Source: Hong, Tsai, Wang, Liu, Wu, *GPU Memory Usage Optimization for Backward Propagation in Deep Network
Training*.  A chain has layers 0..n, layer 0 is the input; layers 0 and n are always checkpoints.

    layer        0     1     2     3     4            C = {0, 2, 4}
    checkpoint   x           x           x            segments {1} and {3}

Two objectives over a checkpoint set C, where h is the checkpoint before i:

    static   (Eq. 6)      sum of C  +  largest segment
    dynamic  (Eq. 9-12)   max over i in C of   sum of C up to i  +  segment (h, i)  +  max over h <= k < i

The second frees values after their last use and holds one buffer of the largest output gradient of the segment.

Deviation: the paper has one size per layer.  A layer of a real graph has inner values and parameters, so here it
has three: the bytes that a checkpoint after it saves, those that it holds until its backward, and those of the
parameter gradients that its backward leaves behind.  With `Chain.of_sizes` the first two are the
paper's ``d`` and the third is 0.  Of several optimal sets we return the one that takes the *farther*
next checkpoint, the rule with which the paper's own sets are found.  Section 4.2.3's "first element" and
``j + 1`` are positions *in the queue*: its head, and the element after ``j``.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from operator import add, gt


@dataclass(frozen=True, slots=True)
class Chain:
    """Sizes of layers 0..n in bytes (any unit will do).

    Attributes:
        checkpoint: Bytes that saving the output of a layer takes; also the size of its output gradient.
        content: Bytes that a layer holds until its backward, its output included; not less than `gradient`.
        gradient: Bytes that the backward of a layer leaves behind to the end of the step; empty means none.
            The dynamic objective counts it, the static one does not.
    """

    checkpoint: tuple[int, ...]
    content: tuple[int, ...]
    gradient: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.checkpoint or len(self.checkpoint) != len(self.content):
            raise ValueError(
                f"got {len(self.checkpoint)} checkpoint and {len(self.content)} content sizes; "
                "give one of each for the input and for every layer"
            )
        if min(self.checkpoint) < 0 or min(self.content) < 0 or min(self.gradient, default=0) < 0:
            raise ValueError("got a negative size; sizes are bytes, 0 or more")
        if self.gradient and len(self.gradient) != len(self.content):
            raise ValueError(f"got {len(self.gradient)} gradients for {len(self.content)} layers; give all or none")
        if any(map(gt, self.gradient, self.content)):
            # Lemma 1 (U rises with j) would fail, and with it Algorithm 6.
            raise ValueError("got a layer whose gradient is larger than its content; raise its content to that")

    @staticmethod
    def of_sizes(sizes: tuple[int, ...] | list[int]) -> Chain:
        """The paper's chain, where a layer is its output: ``sizes[0]`` is the input ``d_0``."""
        return Chain(tuple(sizes), tuple(sizes))

    @property
    def last(self) -> int:
        """Index n of the last layer."""
        return len(self.checkpoint) - 1

    def finished(self) -> list[int]:
        """For each layer, the gradients left behind by the layers after it."""
        if not self.gradient:
            return [0] * len(self.content)
        total = sum(self.gradient)
        return [total - made for made in accumulate(self.gradient)]


@dataclass(frozen=True, slots=True)
class Selection:
    """An optimal checkpoint set.

    Attributes:
        checkpoints: Indices, ascending, without layer 0, with layer n.
        objective: Value of the algorithm's objective.
    """

    checkpoints: tuple[int, ...]
    objective: int


def static_objective(chain: Chain, checkpoints: tuple[int, ...]) -> int:
    """Eq. 6: the checkpoints and the largest segment; layer 0 is added when it is not named."""
    total, largest, before = chain.checkpoint[0], 0, 0
    for i in (c for c in checkpoints if c > 0):
        # The output of layer i counts among the checkpoints, so the segment has the rest of it.
        inner = sum(chain.content[before + 1 : i + 1]) - min(chain.checkpoint[i], chain.content[i])
        total, largest, before = total + chain.checkpoint[i], max(largest, inner), i
    return total + largest


def dynamic_objective(chain: Chain, checkpoints: tuple[int, ...]) -> int:
    """Eq. 9 to 12: the largest m(i) over the checkpoints; layer 0 is added when it is not named."""
    held, peak, before = chain.checkpoint[0], chain.checkpoint[0], 0
    finished = chain.finished()
    for i in (c for c in checkpoints if c > 0):
        # m(i): checkpoints before i, its segment recomputed, one gradient buffer, gradients of all later layers.
        segment = sum(chain.content[before + 1 : i + 1])
        gradient = max(chain.checkpoint[before:i])
        peak = max(peak, held + segment + gradient + finished[i])
        held, before = held + chain.checkpoint[i], i
    # The end of the forward, when all checkpoints are held, may itself be the peak.
    return max(peak, held)


def select_static(chain: Chain) -> Selection:
    """Algorithm 3: minimise Eq. 6 in O(n^3) time.

    For every possible size ``s`` of the largest segment (there are O(n^2)), the cheapest checkpoints whose
    segments are within ``s`` (Eq. 8), by a sliding window minimum.  Sizes below the largest single layer
    that no checkpoint can remove are skipped, as are those that cannot beat the best value found.
    """
    prefix = list(accumulate(chain.content))
    # Layers 0 and n are in every set.
    base = chain.checkpoint[0] + chain.checkpoint[-1] if chain.last else chain.checkpoint[0]
    best: Selection | None = None
    for limit in _segment_sizes(chain, prefix):
        # Limits ascend: from here on the largest segment alone exceeds the best value.
        if best is not None and limit + base > best.objective:
            break
        found = _cheapest_within(chain, prefix, limit)
        if found is not None and (best is None or found.objective < best.objective):
            best = found
    if best is None:
        raise AssertionError("the whole chain as one segment is always allowed")
    return best


def _segment_sizes(chain: Chain, prefix: list[int]) -> list[int]:
    """Every size that a segment can have, ascending: enumerate its two ends."""
    sizes = {0}
    for i in range(1, chain.last + 1):
        end = prefix[i] - min(chain.checkpoint[i], chain.content[i])
        sizes.update(end - prefix[h] for h in range(i))
    return sorted(sizes)


def _cheapest_within(chain: Chain, prefix: list[int], limit: int) -> Selection | None:
    """Cheapest checkpoints with every segment within `limit` (one run of the outer loop of Algorithm 3)."""
    cost = [chain.checkpoint[0]] * (chain.last + 1)
    previous = [0] * (chain.last + 1)
    queue, head = [0], 0  # possible previous checkpoints, cost strictly rising from the head
    for i in range(1, chain.last + 1):
        # The segment (h, i) is within the limit exactly if prefix[h] >= floor, which only rises with i.
        floor = prefix[i] - min(chain.checkpoint[i], chain.content[i]) - limit
        while head < len(queue) and prefix[queue[head]] < floor:
            head += 1
        # Not even the nearest checkpoint makes the segment short enough.
        if head == len(queue):
            return None
        previous[i] = queue[head]
        cost[i] = cost[queue[head]] + chain.checkpoint[i]
        # A dearer candidate leaves; of equals the earlier one stays in front: it makes longer segments.
        while len(queue) > head and cost[queue[-1]] > cost[i]:
            queue.pop()
        queue.append(i)
    checkpoints = _trace(previous, chain.last, 0)[::-1]
    return Selection(checkpoints, static_objective(chain, checkpoints))


def select_quadratic(chain: Chain) -> Selection:
    """Algorithm 5: minimise Eq. 9 to 12 by Eq. 13, in O(n^2) time."""
    n = chain.last
    finished = chain.finished()
    peak = [0] * n + [chain.checkpoint[n]]
    following = [n] * (n + 1)
    # peak[i] is M(i): the best that can follow a checkpoint at i, which the choice before i does not change.
    for i in range(n - 1, -1, -1):
        segment, gradient = 0, 0
        best = -1
        for j in range(i + 1, n + 1):
            segment += chain.content[j]
            gradient = max(gradient, chain.checkpoint[j - 1])
            reach = segment + gradient + finished[j]
            value = max(peak[j], reach)
            # <= takes the farther of equals.
            if best < 0 or value <= best:
                best, following[i] = value, j
            elif reach > best:
                break  # U(i, j) only grows (Lemma 1)
        peak[i] = chain.checkpoint[i] + best
    return Selection(_follow(following, n), peak[0])


def select_linear(chain: Chain) -> Selection:
    """Algorithm 6: minimise Eq. 9 to 12 in O(n) time.

    ``queue`` holds the j worth considering, the smallest index (the head) last, so that M strictly falls
    from the head to the tail.  U(i, j) rises with j (Lemma 1) and as i falls, hence the crossing of U
    and M moves to the head only, and all after the first j with ``U >= M`` never return: they leave at
    ``tail``.  The optimum is that j (``far``), or the one before it (``near``).

    The gradient buffer ``max over i <= k < near`` is a sliding window whose two ends only fall: ``rising``
    holds its candidates.  ``gap[x]`` is the maximum from ``queue[x]`` up to its successor, which extends the
    window from ``near`` to ``far``.  So each layer enters and leaves each list once.
    """
    size, n = chain.checkpoint, chain.last
    prefix = list(accumulate(chain.content))
    end = list(map(add, prefix, chain.finished())) if chain.gradient else prefix
    peak, following = [0] * n + [size[n]], [n] * (n + 1)
    queue, gap, tail = [n], [0], 0
    rising: list[int] = []
    first = 0
    for i in range(n - 1, -1, -1):
        start, buffer = prefix[i], size[i]
        # Layer i stays in the window longest, so smaller sizes before it never matter again.
        while len(rising) > first and size[rising[-1]] <= buffer:
            rising.pop()
        rising.append(i)
        far, near_value = queue[tail], -1
        while len(queue) - tail > 1:
            near = queue[tail + 1]
            # The window ends before `near`.
            while rising[first] >= near:
                first += 1
            reach = end[near] - start + size[rising[first]]
            # M is above U here, so the value at `near` is M alone; beyond, U decides.
            if reach < peak[near]:
                near_value = peak[near]
                break
            tail, far = tail + 1, near
        # With no `near` left `far` is i + 1, whose window is layer i alone.
        window = size[i] if near_value < 0 else max(size[rising[first]], gap[tail + 1])
        value = max(peak[far], end[far] - start + window)
        # Strictly: of equals the farther one is taken.
        if 0 <= near_value < value:
            far, value = queue[tail + 1], near_value
        following[i] = far
        peak[i] = value = value + size[i]
        # Layer i has a smaller U than these and no larger M: they are never chosen again. Their windows pass to it.
        while len(queue) > tail and peak[queue[-1]] >= value:
            buffer = max(buffer, gap.pop())
            queue.pop()
        queue.append(i)
        gap.append(buffer)
        if len(queue) - tail <= 2:
            rising.clear()  # `near` is i now, so the next window begins empty
            first = 0
    return Selection(_follow(following, n), peak[0])


def _follow(following: list[int], last: int) -> tuple[int, ...]:
    """Checkpoints met from layer 0 by going to the next one."""
    found, i = [], 0
    while i < last:
        i = following[i]
        found.append(i)
    return tuple(found)


def _trace(previous: list[int], start: int, stop: int) -> tuple[int, ...]:
    """Checkpoints met from `start` by going to the previous one, without `stop`."""
    found, i = [], start
    while i > stop:
        found.append(i)
        i = previous[i]
    return tuple(found)
