"""In how many chunks a graph is cut, on made-up graphs whose peaks and times are known."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from builders import chain, with_budget
from heard import warnings_heard
from remat_compiler.errors import RanksDiffer
from remat_compiler.ir.plan import Plan, PlanResult, PlanStatus
from remat_compiler.partition.candidate import Chunks, Served, Within
from remat_compiler.partition.in_chunks import COUNTS, cheapest_in_chunks
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.result import NoPlan, Partition
from remat_compiler.report.plan_report import ChunkedRegion

pytestmark = pytest.mark.usual_effort
STEP_NS = 1_000_000


@dataclass(frozen=True)
class Made:
    """A partition, as far as the choice looks at it."""

    chunks: int
    peak_bytes: int
    step_ns: int
    added_ns: int
    before: object = None
    stages: tuple[tuple[str, float], ...] = ()
    problem: object = None
    graphs: Any = field(default_factory=lambda: SimpleNamespace(timeline=None))

    @property
    def total_ns(self) -> int:
        return self.step_ns + self.added_ns

    @property
    def chunked(self) -> tuple[ChunkedRegion, ...]:
        return (ChunkedRegion(self.chunks, "mm", "", 0, 0),) if self.chunks > 1 else ()


@dataclass
class Graph:
    """A graph whose peak shrinks as its loss is in chunks, and whose time grows by a microsecond a chunk.

    Attributes:
        budget_bytes: The budget.
        whole_bytes: Bytes of the whole loss; so much less of it remains as there are chunks.
        beside_bytes: What is there besides.
        saved_ns: Time that each byte below that peak adds.
        rows: Most chunks that there can be; 0 if there is nothing to cut.
        floor_bytes: What no plan goes below, by chunks.
        reached_bytes: What plans reach, where that is above the floor.
        dear_ns: What plans add besides, by chunks.
        take_smallest: Whether plans above the budget are taken.
        broken: Chunks in which cutting fails, or planning if negative.
        error: What it raises.
        within_bytes: What is of the loss at the peak of each plan.
        planned: Chunks that were planned for.
        cut: Chunks that were asked for.
    """

    budget_bytes: int
    whole_bytes: int = 1000
    beside_bytes: int = 0
    saved_ns: int = 1000
    rows: int = 10**6
    floor_bytes: dict[int, int] = field(default_factory=dict)
    reached_bytes: dict[int, int] = field(default_factory=dict)
    dear_ns: dict[int, int] = field(default_factory=dict)
    take_smallest: bool = False
    broken: tuple[int, ...] = ()
    error: Exception = field(default_factory=lambda: ValueError("made up"))
    within_bytes: int = 10**6
    planned: list[int] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)

    def chosen(self, earlier: dict[int, Served] | None = None) -> Made:
        """The choice."""
        request = PartitionRequest(self.budget_bytes, take_smallest=self.take_smallest)
        return cast("Made", cheapest_in_chunks(request, self.in_chunks, earlier, layers=False))

    def in_chunks(self, asked: Chunks) -> Any:
        chunks = asked.losses
        self.cut.append(chunks)
        if chunks in self.broken:
            raise self.error
        return Cut(self, min(chunks, self.rows) if self.rows else 1)


@dataclass
class Cut:
    """The graph in so many chunks."""

    graph: Graph
    chunks: int
    times: tuple[tuple[str, float], ...] = (("plan", 1.0),)

    @property
    def chunked(self) -> tuple[ChunkedRegion, ...]:
        size = self.graph.whole_bytes
        return (ChunkedRegion(self.chunks, "mm", "", size, size // self.chunks),) if self.chunks > 1 else ()

    @property
    def before(self) -> Any:
        return SimpleNamespace(timeline=SimpleNamespace(peak_bytes=self.graph.beside_bytes + self.most_bytes))

    @property
    def most_bytes(self) -> int:
        return self.graph.whole_bytes // self.chunks

    @property
    def step_ns(self) -> int:
        return STEP_NS + 1000 * (self.chunks - 1)

    @property
    def floor_bytes(self) -> int:
        return self.graph.floor_bytes.get(self.chunks, 0)

    def within_bytes(self, problem: object, timeline: object, within: Within) -> int:
        assert within is Within.LOSSES
        return self.graph.within_bytes

    def planned(self, whole_ns: int | None) -> Partition:
        graph = self.graph
        graph.planned.append(self.chunks)
        if -self.chunks in graph.broken:
            raise graph.error
        assert whole_ns == (None if self.chunks == 1 else STEP_NS)
        least, most = graph.reached_bytes.get(self.chunks, self.floor_bytes), graph.beside_bytes + self.most_bytes
        if graph.budget_bytes < least and not graph.take_smallest:
            result = PlanResult(PlanStatus.INFEASIBLE, "made up", Plan((0, 1, 2, 3), 2), least)
            raise NoPlan(with_budget(chain(2), graph.budget_bytes), result)
        peak = max(min(graph.budget_bytes, most), least)
        added = self.step_ns - STEP_NS + graph.saved_ns * max(most - peak, 0)
        added += graph.dear_ns.get(self.chunks, 0)
        return cast("Partition", Made(self.chunks, peak, STEP_NS, added))


@pytest.mark.parametrize("budget_bytes", [1000, 5000])
def test_what_fits_whole_stays_whole(budget_bytes: int) -> None:
    graph = Graph(budget_bytes)
    assert graph.chosen().chunks == 1
    # Nothing else is looked at.
    assert graph.cut == graph.planned == [1]


def test_fewest_chunks_that_recompute_nothing_are_taken_and_no_more_are_planned() -> None:
    graph = Graph(300)
    assert graph.chosen().chunks == 4
    assert graph.planned == [1, 4]


def test_a_little_recomputation_is_rather_paid_than_chunks() -> None:
    graph = Graph(995)
    assert graph.chosen().chunks == 1
    assert graph.cut == graph.planned == [1]


def test_what_cannot_save_time_is_not_planned() -> None:
    # Chunks by themselves take longer than what they would spare.
    graph = Graph(988)
    assert graph.chosen().chunks == 1
    assert graph.cut == [1, 4]
    assert graph.planned == [1]


def test_chunks_are_not_planned_where_the_loss_is_little_of_what_is_recomputed() -> None:
    # Of 500 bytes that are recomputed, 75 are of the loss.
    graph = Graph(1600, whole_bytes=100, beside_bytes=2000, saved_ns=50)
    assert graph.chosen().chunks == 1
    assert graph.cut == [1, 4]
    assert graph.planned == [1]
    dear = Graph(1600, whole_bytes=100, beside_bytes=2000, saved_ns=1000)
    assert dear.chosen().chunks == 4


@pytest.mark.parametrize(("within_bytes", "planned"), [(0, [4]), (8000, [4, 16])])
def test_more_chunks_are_planned_if_much_of_the_peak_of_fewer_is_of_the_loss(
    within_bytes: int, planned: list[int]
) -> None:
    # If nothing is recomputed, more chunks spare 750 bytes of 20,000.
    graph = Graph(1000, whole_bytes=4000, beside_bytes=20_000, saved_ns=5, floor_bytes={1: 4000})
    graph.within_bytes = within_bytes
    graph.chosen()
    assert graph.planned == planned


def test_more_chunks_are_not_planned_where_fewer_gain_nothing() -> None:
    # Recomputation is dear in any number of chunks.
    graph = Graph(900)
    graph.dear_ns[4] = 2 * STEP_NS
    assert graph.chosen().chunks == 1
    assert graph.planned == [1, 4]


def test_more_chunks_are_taken_where_fewer_do_not_fit() -> None:
    graph = Graph(63, floor_bytes={1: 900, 4: 200, 16: 50, 64: 10})
    assert graph.chosen().chunks == 16
    assert graph.planned == [16]


def test_the_whole_is_planned_although_its_floor_is_low() -> None:
    graph = Graph(63, floor_bytes={16: 50}, reached_bytes={1: 900, 4: 200})
    assert graph.chosen().chunks == 16
    assert graph.planned == [1, 4, 16]


def test_the_smallest_peak_is_that_of_all_numbers_of_chunks() -> None:
    graph = Graph(1, floor_bytes={1: 900, 4: 200, 16: 60, 64: 55}, reached_bytes={64: 70}, take_smallest=True)
    assert graph.chosen().chunks == 16
    # Those whose floor is above what was reached are not planned.
    assert graph.planned == [64, 16]


@pytest.mark.parametrize("reached_bytes", [600, 615])
def test_where_more_chunks_leave_the_floor_as_it_is_the_fewest_are_planned(reached_bytes: int) -> None:
    floors = dict.fromkeys((4, 16, 64), 600)
    graph = Graph(1, floor_bytes={1: 900, **floors}, reached_bytes={4: reached_bytes}, take_smallest=True)
    assert graph.chosen().chunks == 4
    assert graph.planned == [4]
    # Nothing lower is known of 64 than of 16.
    assert graph.cut == [1, 4, 16]


@pytest.mark.parametrize("floor_bytes", [600, 900])
def test_more_chunks_are_planned_as_long_as_the_peak_is_above_the_floor(floor_bytes: int) -> None:
    floors = {1: 900, **dict.fromkeys((4, 16, 64), floor_bytes)}
    reached = {1: 5000, 4: 3000, 16: 1000, 64: 950}
    graph = Graph(1, floor_bytes=floors, reached_bytes=reached, take_smallest=True)
    assert graph.chosen().chunks == 64
    assert graph.planned == ([4, 16, 64, 1] if floor_bytes < 900 else [1, 4, 16, 64])
    assert graph.cut == [1, *COUNTS]


@pytest.mark.parametrize("take_smallest", [True, False])
def test_where_nothing_fits_smaller_budgets_are_planned_in_as_many_chunks(take_smallest: bool) -> None:
    floors, reached, earlier = {1: 900, 4: 200, 16: 60, 64: 65}, {64: 70}, {}
    for budget_bytes, planned in ((50, [16]), (50, [16]), (1, [16]), (61, [16])):
        graph = Graph(budget_bytes, floor_bytes=floors, reached_bytes=reached, take_smallest=take_smallest)
        if take_smallest or budget_bytes >= 60:
            assert graph.chosen(earlier).chunks == 16
        else:
            with pytest.raises(NoPlan) as refused:
                graph.chosen(earlier)
            assert refused.value.needed_bytes == 60
        assert graph.planned == planned
    assert earlier == {budget: Served(Chunks(16), fits=budget == 61) for budget in (1, 50, 61)}


def test_more_chunks_are_not_planned_where_nothing_of_the_loss_is_there_at_the_peak() -> None:
    floors = dict.fromkeys((1, 4, 16, 64), 600)
    graph = Graph(1, floor_bytes=floors, reached_bytes={1: 5000}, take_smallest=True, within_bytes=100)
    assert graph.chosen().chunks == 1
    assert graph.planned == [1]


def test_what_is_too_small_for_others_may_fit_after_all() -> None:
    # In another order, say: then all numbers of chunks are looked at.
    graph = Graph(300)
    assert graph.chosen({300: Served(Chunks(16), fits=False)}).chunks == 4
    assert graph.planned == [16, 1, 4]


def test_a_refusal_names_the_smallest_peak_of_all_numbers_of_chunks() -> None:
    graph = Graph(10, floor_bytes={1: 900, 4: 200, 16: 60, 64: 65}, reached_bytes={64: 70})
    with pytest.raises(NoPlan) as refused:
        graph.chosen()
    assert refused.value.needed_bytes == 60


@pytest.mark.parametrize("budget_bytes", [500, 10])
def test_without_anything_to_cut_one_more_look_is_all(budget_bytes: int) -> None:
    graph = Graph(budget_bytes, rows=0)
    assert graph.chosen().chunks == 1
    assert graph.cut == [1, COUNTS[0]]
    assert graph.planned == [1]


def test_few_rows_are_cut_once() -> None:
    graph = Graph(1, rows=16, floor_bytes={1: 900, 4: 200, 16: 60}, take_smallest=True)
    assert graph.chosen().chunks == 16
    assert graph.cut == [1, *COUNTS]
    assert graph.planned == [16]


def test_what_more_chunks_would_take_is_told_by_fewer() -> None:
    # The plan in 16 adds 15 µs of chunks and 40 of recomputation: the 48 chunks more of 64 would take as long.
    graph = Graph(21, saved_ns=1000, floor_bytes={1: 900, 4: 200})
    graph.reached_bytes[16] = 21
    assert graph.chosen().chunks == 16
    assert graph.cut == [1, 4, 16]


def test_a_budget_that_is_nearly_the_same_is_served_by_as_many_chunks() -> None:
    in_4, in_16 = Served(Chunks(4), fits=True), Served(Chunks(16), fits=True)
    graph, earlier = Graph(300), {310: in_4, 150: in_16}
    assert graph.chosen(earlier).chunks == 4
    assert graph.planned == [4]
    assert earlier == {
        310: Served(Chunks(4), fits=True),
        150: Served(Chunks(16), fits=True),
        300: Served(Chunks(4), fits=True),
    }


def test_a_budget_that_they_do_not_fit_is_searched_for_anew() -> None:
    graph = Graph(63, floor_bytes={1: 900, 4: 200})
    assert graph.chosen({63: Served(Chunks(4), fits=True)}).chunks == 16
    assert graph.planned == [16]


@pytest.mark.parametrize("earlier", [1, 4, 16, 64])
@pytest.mark.parametrize("take_smallest", [True, False])
def test_each_number_of_chunks_is_made_and_planned_once(earlier: int, take_smallest: bool) -> None:
    # Each is refused only once it is planned.
    reached = {1: 900, 4: 200, 16: 60, 64: 65}
    graph = Graph(10, reached_bytes=reached, take_smallest=take_smallest)
    if take_smallest:
        assert graph.chosen({10: Served(Chunks(earlier), fits=True)}).chunks == 16
    else:
        with pytest.raises(NoPlan) as refused:
            graph.chosen({10: Served(Chunks(earlier), fits=True)})
        assert refused.value.needed_bytes == 60
    assert sorted(graph.cut) == sorted(graph.planned) == [1, *COUNTS]


def test_a_defect_in_as_many_chunks_as_before_is_told_once() -> None:
    with warnings_heard() as heard:
        assert (
            Graph(70, floor_bytes={1: 900, 4: 200}, broken=(-16,)).chosen({70: Served(Chunks(16), fits=True)}).chunks
            == 64
        )
    assert len(heard) == 1


@pytest.mark.parametrize("broken", [(16,), (-16,)])
def test_a_defect_in_chunks_leaves_fewer(broken: tuple[int, ...]) -> None:
    with warnings_heard() as heard:
        assert Graph(70, floor_bytes={1: 900, 4: 60}, dear_ns={4: 600_000}, broken=broken).chosen().chunks in (4, 64)
    assert [text for text in heard if "not computed in 16 chunks, since that failed (ValueError" in text]


def test_a_defect_of_the_whole_is_none_of_chunks() -> None:
    with pytest.raises(ValueError, match="made up"):
        Graph(70, broken=(-1,)).chosen()


@pytest.mark.parametrize("broken", [(16,), (-16,)])
def test_what_is_meant_for_the_user_or_for_other_ranks_is_no_defect(broken: tuple[int, ...]) -> None:
    graph = Graph(70, floor_bytes={1: 900, 4: 60}, dear_ns={4: 600_000}, broken=broken, error=RanksDiffer("made up"))
    with pytest.raises(RanksDiffer, match="made up"):
        graph.chosen()


@pytest.mark.parametrize(("chunks", "spared_ns"), [(1, 1), (4, 0)])
def test_next_to_nothing_is_not_worth_the_code_of_chunks_again(chunks: int, spared_ns: int) -> None:
    made: Any = SimpleNamespace(
        graphs=SimpleNamespace(timeline=SimpleNamespace(added_ns=1)),
        chunked=(chunks,) if chunks > 1 else (),
        step_ns=10**6,
    )
    gainable_ns: Any = Partition.gainable_ns
    assert gainable_ns.fget(made) == spared_ns
    made.graphs.timeline.added_ns = made.step_ns
    assert gainable_ns.fget(made) == made.step_ns
