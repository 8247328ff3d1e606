"""In how many chunks a graph is cut, on made-up plans whose peaks and times are known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import pytest
from torch import fx

from builders import chain, with_budget
from remat_compiler.ir.plan import Plan, PlanResult, PlanStatus
from remat_compiler.partition.in_chunks import COUNTS, cheapest_in_chunks
from remat_compiler.partition.request import AS_PLANNED, PartitionRequest
from remat_compiler.partition.result import NoPlan, Partition


@dataclass(frozen=True)
class Made:
    """A partition, as far as the choice looks at it."""

    chunked: tuple[int, ...]
    peak_bytes: int
    step_ns: int
    added_ns: int
    before: object = None


@dataclass
class Cutter:
    """Plans whose peak shrinks with the chunks, and whose time grows by a nanosecond a chunk.

    Attributes:
        whole_bytes: Peak without recomputation of the whole loss; so much less of it remains as there are chunks.
        saved_ns: Time that each byte below that peak adds.
        can_cut: Whether there is something to compute in chunks.
        floor_bytes: Smallest peak of any plan, by chunks; without one, plans take all that they may.
        tried: Chunks that were asked for.
    """

    whole_bytes: int = 1000
    saved_ns: float = 1.0
    can_cut: bool = True
    floor_bytes: dict[int, int] = field(default_factory=dict)
    tried: list[int] = field(default_factory=list)

    def __call__(self, joint: fx.GraphModule, request: PartitionRequest) -> Partition | None:
        self.tried.append(request.chunks)
        if request.chunks > 1 and not self.can_cut:
            return None
        native = self.whole_bytes // request.chunks
        budget = native if request.budget_bytes is None else request.budget_bytes
        floor = self.floor_bytes.get(request.chunks, 0)
        if budget < floor and not request.take_smallest:
            plan = Plan((0, 1, 2, 3), 2)
            result = PlanResult(PlanStatus.INFEASIBLE, "made up", plan, floor)
            raise NoPlan(with_budget(chain(2), budget), result)
        peak = max(min(budget, native), floor)
        chunked = (request.chunks,) if request.chunks > 1 else ()
        made = Made(chunked, peak, 1000 + request.chunks, int(self.saved_ns * (native - peak)))
        return cast("Partition", made)


def chosen(cutter: Cutter, budget_bytes: int | None, *, take_smallest: bool = False) -> Partition:
    """The choice for an empty graph."""
    joint = fx.GraphModule({}, fx.Graph())
    joint.graph.output(())
    request = PartitionRequest(budget_bytes, take_smallest=take_smallest, chunks=AS_PLANNED)
    return cheapest_in_chunks(joint, request, cutter)


@pytest.mark.parametrize("budget_bytes", [None, 1000, 5000])
def test_what_fits_whole_stays_whole(budget_bytes: int | None) -> None:
    assert not chosen(cutter := Cutter(), budget_bytes).chunked
    assert cutter.tried == [1]


def test_fewest_chunks_that_recompute_nothing_are_taken_and_no_more_are_tried() -> None:
    assert chosen(cutter := Cutter(), 300).chunked == (4,)
    assert cutter.tried == [1, 4]


def test_what_costs_more_time_in_chunks_stays_whole() -> None:
    # A little recomputation of the whole is cheaper than the kernels of any chunks.
    assert not chosen(cutter := Cutter(saved_ns=0.01), 900).chunked
    assert cutter.tried == [1, 4]


def test_more_chunks_are_taken_where_fewer_do_not_fit() -> None:
    cutter = Cutter(floor_bytes={1: 900, 4: 200, 16: 50, 64: 10})
    assert chosen(cutter, 63).chunked == (16,)
    assert cutter.tried == [1, 4, 16]


def test_the_smallest_peak_is_that_of_all_numbers_of_chunks() -> None:
    cutter = Cutter(floor_bytes={1: 900, 4: 200, 16: 60, 64: 70})
    assert chosen(cutter, 1, take_smallest=True).chunked == (16,)
    assert cutter.tried == [1, *COUNTS]


def test_a_refusal_names_the_smallest_peak_of_all_numbers_of_chunks() -> None:
    cutter = Cutter(floor_bytes={1: 900, 4: 200, 16: 60, 64: 70})
    with pytest.raises(NoPlan) as refused:
        chosen(cutter, 10)
    assert refused.value.needed_bytes == 60


@pytest.mark.parametrize("budget_bytes", [500, 10])
def test_without_anything_to_cut_one_more_look_is_all(budget_bytes: int) -> None:
    assert not chosen(cutter := Cutter(can_cut=False), budget_bytes).chunked
    assert cutter.tried == [1, COUNTS[0]]
