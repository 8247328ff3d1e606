"""When what is moved gives up its memory, and when it takes memory again: as the copies need it and the budget allows.

A value leaves as soon as it may, and its memory is waited for as late as the budget allows, but not before the copy is
out.  It comes back as late as its copy still hides behind the step, which is as early as it must, and later if there is
no memory for it yet.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remat_compiler.ir.problem import Link
from remat_compiler.simulate.arrays import IntArray
from remat_passes.transfers.gaps import Gaps


@dataclass(slots=True, eq=False)
class Placing:
    """When the instances of some gaps leave and return; call `places` once.

    Attributes:
        gaps: Gaps of the plan.
        chosen: Those in which something is moved.
        live_bytes: Live bytes at each step, with all of them moved for as long as they can be; changed to those with
            all of them moved for as long as they are.
        begins_ns: When each step begins, and at last when the step ends.
        boundary: First step of the backward.
        budget_bytes: Bytes that may be alive at each step.
        link: The way to the tier.
    """

    gaps: Gaps
    chosen: list[int]
    live_bytes: IntArray
    begins_ns: IntArray
    boundary: int
    budget_bytes: int
    link: Link

    def places(self) -> list[tuple[int, int]]:
        """For each chosen gap, the step from which its memory is free, and that before which it is taken again."""
        leave = self._leave()
        back = self._return(leave)
        return [(leave[gap], back[gap]) for gap in self.chosen]

    def _leave(self) -> dict[int, int]:
        """The step from which the memory of each gap is free."""
        gaps, begins_ns = self.gaps, self.begins_ns
        found, free_ns = {}, 0
        # In the order of the queue.
        for gap in sorted(self.chosen, key=lambda gap: (int(gaps.made[gap]), int(gaps.first[gap]))):
            size, first, read = int(gaps.size_bytes[gap]), int(gaps.first[gap]), int(gaps.read[gap])
            free_ns = max(free_ns, int(begins_ns[gaps.made[gap] + 1])) + self.link.out_ns(size)
            done = int(np.searchsorted(begins_ns, free_ns))
            # The forward waits for its copies at its end; the last step of the gap stays for the way back.
            latest = min(done, read - 1, self.boundary if first <= self.boundary else read - 1)
            above = self._above(size, first, latest)
            step = first + int(above[0]) if len(above) else max(latest, first)
            self.live_bytes[first:step] += size
            found[gap] = step
            # What waits here makes all later steps late, by as much as the copy was.
            free_ns = max(free_ns, int(begins_ns[step]))
        return found

    def _return(self, leave: dict[int, int]) -> dict[int, int]:
        """The step before which memory is taken again for each gap."""
        gaps, begins_ns = self.gaps, self.begins_ns
        found, need_ns = {}, 2**62
        # From the end: the copy before must be done when the next one has to begin.
        for gap in sorted(self.chosen, key=lambda gap: (-int(gaps.read[gap]), gap)):
            size, read, out = int(gaps.size_bytes[gap]), int(gaps.read[gap]), leave[gap]
            need_ns = min(need_ns, int(begins_ns[read])) - self.link.back_ns(size)
            step = int(np.searchsorted(begins_ns, need_ns, side="right")) - 1
            lowest = max(out + 1, self.boundary if read >= self.boundary else 0)
            step = min(max(step, lowest), read)
            above = self._above(size, step, read)
            if len(above):
                step += int(above[-1]) + 1
            self.live_bytes[step:read] += size
            found[gap] = step
            need_ns = min(need_ns, int(begins_ns[step]))
        return found

    def _above(self, size_bytes: int, first: int, stop: int) -> IntArray:
        """The steps from `first` to `stop`, counted from `first`, that have no room for `size_bytes` more."""
        return np.flatnonzero(self.live_bytes[first:stop] + size_bytes > self.budget_bytes)
