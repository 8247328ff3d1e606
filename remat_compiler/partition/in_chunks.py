"""How many chunks losses and layers of a joint graph are computed in, if the plan is to say: the cheapest that fits.

    whole ─► fits, and adds next to nothing? ─► yes: as without this option
              │ no
              ▼
    losses in 4, 16, 64 chunks, as long as they may save time ─► of the plans that fit the one of the least time
              │ nothing fits
              ▼
    the lowest floor first, as long as the peak may fall ─► the plan of the smallest peak
              │ much of the peak is within layers, and much is recomputed or nothing fits
              ▼
    layers in 4, 16 chunks, as long as that spares time, or lowers the peak; then losses in more, if these are the floor

To cut and to capture a graph takes a fraction of the time of planning it, and tells what plans of it cannot go below:
the time of its operators, each executed once, and its floor.  What one budget came to is remembered for the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from remat_compiler.ir.problem import UNLIMITED_BYTES
from remat_compiler.partition.candidate import WHOLE, Candidate, Chunks, Served, Within, served_alike
from remat_compiler.partition.candidates import FEW, Candidates
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.result import Partition

COUNTS = (FEW, 16, 64)
"""Numbers of chunks of losses that are planned for."""
LAYERS = (FEW, 16)
"""The same of layers, of which there are many: all of them in chunks are as many times as many operators."""
GAIN = 0.01
"""Part of the step that more chunks must save: results change in their last bits, and code grows."""
AT_THE_FLOOR = 0.03
"""A peak above the floor by no more than this part is hardly lowered by chunks that leave the floor as it is; what
layers in chunks lower it by is to be more."""
DEAREST = 3.0
"""What the bytes of a plan that are recomputed at the highest price cost, relative to the average."""


def cheapest_in_chunks(
    request: PartitionRequest,
    in_chunks: Callable[[Chunks], Candidate],
    earlier: dict[int, Served] | None = None,
    *,
    losses: bool = True,
    layers: bool = True,
    attention: bool = True,
) -> Partition:
    """The partition in as many chunks as serve the budget best.

    Args:
        request: The budget, in bytes.
        in_chunks: The graph in at most so many chunks.  Each is asked for once, since what is made of the graph may
            change it.
        earlier: What earlier budgets of the graph came to, in bytes; this one is added.  As many chunks serve another
            budget that is nearly the same, if they fit it, and one in which no more fits.
        losses: Whether the graph may have losses that can be cut.
        layers: The same of layers.
        attention: Whether there is attention by one operator in such.

    Raises:
        NoPlan: Nothing fits in any number of chunks.
    """
    budget_bytes, known = request.budget_bytes, {} if earlier is None else earlier
    assert budget_bytes is not None
    search = _Search(budget_bytes, in_chunks, losses=losses, layers=layers, attention=attention)
    served = served_alike(known, budget_bytes)
    chosen = (served and search.in_as_many(served)) or search.run()
    known[budget_bytes] = Served(chosen, search.fits(chosen))
    return search.partition(chosen)


@dataclass(slots=True)
class _Search(Candidates):
    """The search for one graph.

    Attributes:
        losses: Whether there may be losses to cut.
        layers: Whether there may be layers to cut.
        attention: Whether there is attention by one operator in such.
        later: Numbers of chunks that it has left out for as long as no others are planned.
    """

    losses: bool = True
    layers: bool = True
    attention: bool = True
    later: list[Chunks] = field(default_factory=list)

    def in_as_many(self, served: Served) -> Chunks | None:
        """The chunks that served another budget; `None` unless the plan in them fits, or not, as there."""
        self.ready, chunks = [WHOLE], served.chunks
        # In another order, whole layers may have the smaller peak.
        asked = [chunks] if served.fits or chunks.layers == 1 else [Chunks(chunks.losses), chunks]
        for one in asked:
            if one == WHOLE or self.add(one):
                if not served.fits:
                    self.plan(one)
                else:
                    self.plan_if_it_may_fit(one)
        peaks = {one: peak for one in asked if (peak := self.needed_bytes(one)) is not None}
        lowest = min(peaks, key=lambda one: (peaks[one], one), default=None)
        return lowest if lowest is not None and self.fits(lowest) == served.fits else None

    def run(self) -> Chunks:
        """The chunks of the best plan; raises as `cheapest_in_chunks` does."""
        self.ready = [WHOLE]
        self.plan_if_it_may_fit(WHOLE)
        if self.losses:
            self._cut_losses()
        best = self._best
        if best is not None:
            return self._with_cheaper_layers(best) if self.layers else best
        smallest = self._of_the_smallest_peak()
        return self._with_lower_layers(smallest) if self.layers else smallest

    def _cut_losses(self) -> None:
        """Plan for losses in more and more chunks, as long as that may save time."""
        for chunks in map(Chunks, COUNTS):
            if self._gain_ns(self._expected_ns(chunks)) <= 0 or not self.add(chunks):
                return
            candidate, before = self.candidate(chunks), self._best
            # More chunks will not fit either; whether they have a smaller peak is seen once fewer are planned.
            if before is None and candidate.floor_bytes > self.budget_bytes and not self._lowers_the_floor(chunks):
                self.later = [Chunks(one) for one in COUNTS if one > chunks.losses]
                return
            if self._gain_ns(candidate.step_ns, self._keeping_all_bytes(chunks)) <= 0:
                return
            self.plan_if_it_may_fit(chunks)
            # Where fewer chunks gain nothing, more of them rarely do, and each plan takes long.
            if before is not None and self._best == before:
                return

    def _with_cheaper_layers(self, best: Chunks) -> Chunks:
        """The chunks of the plan of the least time that fits, of those with layers in chunks, too.

        Args:
            best: Those of the best plan with whole layers.
        """
        whole, ways = best, [False, True] if self.attention else [False]
        for layers in LAYERS:
            before = best
            for attention in ways:
                more = Chunks(best.losses, layers, attention)
                # Of layers that are in as many chunks already, attention is whole.
                left, within = (best.layers, whole) if best.layers < layers else (1, best)
                within_bytes = self.within_bytes(within, Within.ALL_LAYERS if attention else Within.LAYERS)
                # What is not there at the peak leaves room for other values.
                most_bytes = self.candidate(best).before.timeline.peak_bytes
                left_bytes = most_bytes - within_bytes // left + within_bytes // layers
                if self._gain_ns(self.candidate(best).step_ns, left_bytes) <= 0 or not self.add(more):
                    continue
                if self._gain_ns(self.candidate(more).step_ns, left_bytes) > 0:
                    self.plan_if_it_may_fit(more)
                if self._best != more:
                    break
                best = more
            if best == before:
                break
            ways = [best.attention]  # whether that pays is seen once
        return best

    def _with_lower_layers(self, smallest: Chunks) -> Chunks:
        """The chunks of the first plan with layers in chunks that fits; else of the smallest peak of all.

        Args:
            smallest: Those of the smallest peak with whole layers.
        """
        peaks = {one: peak for one in self.ready if (peak := self.needed_bytes(one)) is not None}
        if smallest not in peaks:
            return smallest
        # A floor above the budget, and above that of others, is one of losses: layers in chunks do not lower it.
        floors = {one: self.candidate(one).floor_bytes for one in peaks}
        most_bytes = max(self.budget_bytes, min(floors.values()) * (1 + AT_THE_FLOOR))
        able = [one for one, floor in floors.items() if floor <= most_bytes]
        least_bytes = min(peaks[one] for one in able)
        # Of nearly equal peaks the fewest chunks, of those whose losses leave something to gain if there are any.
        near, wanted_bytes = least_bytes * (1 + AT_THE_FLOOR), least_bytes * (1 - AT_THE_FLOOR)
        least = [one for one in able if peaks[one] <= near]
        now = min([one for one in least if floors[one] <= wanted_bytes] or least)
        within_bytes = self.within_bytes(now, Within.ALL_LAYERS)
        for layers in LAYERS:
            more, wanted_bytes = Chunks(now.losses, layers, self.attention), least_bytes * (1 - AT_THE_FLOOR)
            left_bytes = least_bytes - within_bytes // now.layers + within_bytes // layers
            if left_bytes > wanted_bytes or not self.add(more) or self.candidate(more).floor_bytes > wanted_bytes:
                break
            self.plan(more)
            reached_bytes = self.needed_bytes(more)
            if reached_bytes is None or reached_bytes >= least_bytes:
                break
            now = more
            if reached_bytes < peaks[smallest]:
                smallest, peaks[now] = now, reached_bytes
            if self.fits(now) or reached_bytes > wanted_bytes:
                break
            # Less is gained than was within them if something else is nearly as large.
            within_bytes = within_bytes * (least_bytes - reached_bytes) // (least_bytes - left_bytes)
            least_bytes = reached_bytes
        return self._with_lower_losses(smallest) if self.losses and smallest.layers > 1 else smallest

    def _with_lower_losses(self, smallest: Chunks) -> Chunks:
        """The same with losses in more chunks, as long as these are the floor now that layers are in chunks."""
        for losses in (one for one in COUNTS if one > smallest.losses):
            more, least_bytes = smallest._replace(losses=losses), self.needed_bytes(smallest)
            if self.fits(smallest) or least_bytes is None or not self.add(more):
                break
            if self.candidate(more).floor_bytes >= (1 - AT_THE_FLOOR) * self.candidate(smallest).floor_bytes:
                break
            self.plan(more)
            if (self.needed_bytes(more) or UNLIMITED_BYTES) >= least_bytes:
                break
            smallest = more
        return smallest

    def _keeping_all_bytes(self, chunks: Chunks) -> int:
        """Peak in so many chunks if nothing is recomputed, or less if more is spared at the best plan's peak."""
        peak_bytes, best = self.candidate(chunks).before.timeline.peak_bytes, self._best
        if best is None or best.losses == 1:
            return peak_bytes
        spared_bytes = self.within_bytes(best, Within.LOSSES) * (chunks.losses - best.losses) // chunks.losses
        return min(peak_bytes, self.candidate(best).before.timeline.peak_bytes - spared_bytes)

    def _expected_ns(self, chunks: Chunks) -> int:
        """`Candidate.step_ns` of so many chunks: each one more adds as much time."""
        *_, latest = ready = [self.candidate(one) for one in self.ready]
        if len(ready) < 3:
            return latest.step_ns
        (few, less_ns), (many, more_ns) = ((one.chunked[0].chunks, one.step_ns) for one in ready[-2:])
        return more_ns + (more_ns - less_ns) * (chunks.losses - many) // (many - few)

    def _gain_ns(self, step_ns: int, keeping_all_bytes: int = 0) -> float:
        """Most time, beyond what counts as none, that plans of a candidate may spare beside the best so far.

        Args:
            step_ns: `Candidate.step_ns`.
            keeping_all_bytes: Its peak if nothing is recomputed: what is above the budget has a price, which the bytes
                of the best plan tell.
        """
        if self._best is None:
            return 1.0
        best, of = self.made[self._best], self.candidate(self._best)
        recomputed_ns = best.total_ns - of.step_ns
        most_bytes = of.before.timeline.peak_bytes
        spared = DEAREST * (most_bytes - keeping_all_bytes) / max(most_bytes - self.budget_bytes, 1)
        return recomputed_ns * min(max(spared, 0), 1) - (step_ns - of.step_ns) - GAIN * self.whole.step_ns

    @property
    def _best(self) -> Chunks | None:
        """Of the plans that fit that of the least time, but for one in fewer chunks that takes hardly more."""
        best: Chunks | None = None
        for chunks, one in sorted(self.made.items()):
            spared_ns = 0 if best is None else self.made[best].total_ns - one.total_ns
            if self.fits(chunks) and (best is None or spared_ns > GAIN * self.whole.step_ns):
                best = chunks
        return best

    def _of_the_smallest_peak(self) -> Chunks:
        """The chunks whose plan has the smallest peak, once all are planned that may have a smaller one."""
        floors = {one: self.candidate(one).floor_bytes for one in self.ready}
        floors |= dict.fromkeys(self.later, floors[self.ready[-1]])
        # Of equal floors the fewest chunks, whose plans are the fastest to make, and take the least time.
        for chunks in sorted(floors, key=lambda one: (floors[one], one)):
            if chunks in self.later and not (self._may_be_lower(self.ready[-1]) and self.add(chunks)):
                continue
            if self._may_be_lower(chunks):
                self.plan(chunks)
        # A plan that is taken goes before one that is refused, and a refusal that names a peak before one without.
        tried = sorted(one for one in self.ready if one in self.made or one in self.refusals)
        return min(tried, key=lambda one: (one not in self.made, self.needed_bytes(one) or UNLIMITED_BYTES))

    def _may_be_lower(self, chunks: Chunks) -> bool:
        """Whether plans in so many chunks may have a smaller peak than all so far."""
        peaks = [self.needed_bytes(one) for one in self.ready]
        least_bytes = min((one for one in peaks if one is not None), default=UNLIMITED_BYTES)
        floor_bytes = self.candidate(chunks).floor_bytes
        if self._lowers_the_floor(chunks) or least_bytes == UNLIMITED_BYTES:
            return least_bytes > floor_bytes
        if least_bytes <= floor_bytes * (1 + AT_THE_FLOOR):
            return False
        lowest = self.ready[peaks.index(least_bytes)]
        return self.within_bytes(lowest, Within.LOSSES) > least_bytes * AT_THE_FLOOR

    def _lowers_the_floor(self, chunks: Chunks) -> bool:
        """Whether the floor is lower than in fewer chunks."""
        floors = [self.candidate(one).floor_bytes for one in self.ready if one < chunks]
        return self.candidate(chunks).floor_bytes < min(floors, default=UNLIMITED_BYTES)
