"""Whether layers of a graph are cut, on made-up graphs whose peaks and times are known."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from builders import chain, with_budget
from heard import warnings_heard
from partition.test_in_chunks import STEP_NS, Made
from remat_compiler.ir.plan import Plan, PlanResult, PlanStatus
from remat_compiler.partition.candidate import Chunks, Served, Within
from remat_compiler.partition.in_chunks import cheapest_in_chunks
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.result import NoPlan
from remat_compiler.report.plan_report import ChunkedRegion

pytestmark = pytest.mark.usual_effort


@dataclass
class Layered:
    """A graph of layers whose peak, at "min", shrinks by 600 of 1000 bytes as they are in chunks.

    Attributes:
        budget_bytes: The budget.
        within_bytes: What is within layers at the peak while they are whole; a defect if negative.
        added_ns: What plans add, by chunks of layers, at most the budget.
        floor_bytes: What no plan goes below in chunks.
        most: Most chunks that there can be.
        reached_bytes: Smallest peaks, by chunks of layers, where they are others.
        take_smallest: Whether plans above the budget are taken.
        attention_ns: What plans add if attention is in chunks, too; `None` for a graph without.
        loss_bytes: What the loss takes while it is whole, beside layers.
        broken: Whether planning for layers in chunks fails.
        planned: Chunks that were planned for.
        made: Chunks that were asked for.
    """

    budget_bytes: int
    within_bytes: int = 600
    added_ns: dict[int, int] = field(default_factory=dict)
    floor_bytes: int = 0
    most: int = 16
    reached_bytes: dict[int, int] = field(default_factory=dict)
    take_smallest: bool = True
    attention_ns: int | None = None
    loss_bytes: int = 0
    broken: bool = False
    planned: list[Chunks] = field(default_factory=list)
    made: list[Chunks] = field(default_factory=list)

    def chosen(self, *, losses: bool = False) -> Any:
        """The choice."""
        request = PartitionRequest(self.budget_bytes, take_smallest=self.take_smallest)
        return cheapest_in_chunks(request, self.in_chunks, losses=losses)

    def in_chunks(self, chunks: Chunks) -> Any:
        self.made.append(chunks)
        return InLayers(self, chunks)


@dataclass
class InLayers:
    """The graph in so many chunks."""

    graph: Layered
    chunks: Chunks
    times: tuple[tuple[str, float], ...] = ()

    @property
    def chunked(self) -> tuple[ChunkedRegion, ...]:
        layers = min(self.chunks.layers, self.graph.most)
        made = (ChunkedRegion(layers, "mm", "", 600, 600 // layers, "layer"),) if layers > 1 else ()
        if self.chunks.losses > 1:
            made = (ChunkedRegion(self.chunks.losses, "mm", "", 400, 100), *made)
        attention = self.chunks.attention and self.graph.attention_ns is not None
        return (*made, ChunkedRegion(layers, "mm", "", 300, 300 // layers, "attention")) if attention else made

    @property
    def before(self) -> Any:
        return SimpleNamespace(timeline=SimpleNamespace(peak_bytes=3000))

    @property
    def step_ns(self) -> int:
        return STEP_NS + 1000 * (self.chunks.layers - 1)

    @property
    def floor_bytes(self) -> int:
        return max(900 if self.chunks.layers == 1 else self.graph.floor_bytes, self.beside_bytes)

    @property
    def beside_bytes(self) -> int:
        """What is needed with the loss, whatever becomes of layers."""
        return 400 + self.graph.loss_bytes // self.chunks.losses if self.graph.loss_bytes else 0

    def within_bytes(self, problem: object, timeline: object, within: Within) -> int:
        assert within is not Within.LOSSES or self.graph.loss_bytes
        if self.graph.within_bytes < 0:
            raise ValueError("made up")
        return 0 if within is Within.LOSSES else self.graph.within_bytes

    def planned(self, whole_ns: int | None) -> Any:
        graph, layers = self.graph, self.chunks.layers
        graph.planned.append(self.chunks)
        if graph.broken and layers > 1:
            raise ValueError("made up")
        smallest = max(graph.reached_bytes.get(layers, 400 + 600 // layers), self.beside_bytes)
        if smallest > graph.budget_bytes and not graph.take_smallest:
            problem = with_budget(chain(2), graph.budget_bytes)
            result = PlanResult(PlanStatus.INFEASIBLE, "made up", Plan((0, 1, 2, 3), 2), smallest)
            raise NoPlan(problem, result)
        peak, added = max(smallest, graph.budget_bytes), graph.added_ns.get(layers, 0)
        if self.chunks.attention and graph.attention_ns is not None:
            added = graph.attention_ns
        return Made(layers, peak, STEP_NS, added)


WHOLE, IN_4, IN_16 = Chunks(), Chunks(1, 4), Chunks(1, 16)
ALL_IN_4, ALL_IN_16 = Chunks(1, 4, attention=True), Chunks(1, 16, attention=True)


def test_layers_stay_whole_where_little_is_recomputed() -> None:
    graph = Layered(1500, added_ns={1: STEP_NS // 100})
    assert graph.chosen().chunks == 1
    assert graph.made == graph.planned == [WHOLE]


def test_layers_are_in_chunks_where_that_is_cheaper() -> None:
    graph = Layered(1200, added_ns={1: STEP_NS // 2, 4: STEP_NS // 5, 16: STEP_NS // 5})
    assert graph.chosen().chunks == 4
    assert graph.planned[:2] == [WHOLE, IN_4]


def test_of_plans_that_fit_the_cheaper_one_is_taken() -> None:
    graph = Layered(1200, added_ns={1: STEP_NS // 2, 4: STEP_NS})
    assert graph.chosen().chunks == 1
    assert graph.planned == [WHOLE, IN_4]


@pytest.mark.parametrize(("attention_ns", "last"), [(STEP_NS // 9, ALL_IN_16), (STEP_NS // 2, IN_16)])
def test_attention_is_in_chunks_only_if_that_is_cheaper_than_without(attention_ns: int, last: Chunks) -> None:
    graph = Layered(1200, added_ns={1: STEP_NS, 4: STEP_NS // 3, 16: STEP_NS // 3}, attention_ns=attention_ns)
    assert graph.chosen().chunks == 4
    assert graph.planned[:3] == [WHOLE, IN_4, ALL_IN_4]
    # That is seen once: more chunks are asked for in the better way alone.
    assert graph.made == [WHOLE, IN_4, ALL_IN_4, last]


def test_layers_of_which_nothing_is_there_at_the_peak_stay_whole() -> None:
    graph = Layered(1200, within_bytes=0, added_ns={1: STEP_NS})
    assert graph.chosen().chunks == 1
    assert graph.made == [WHOLE]
    small = Layered(1, within_bytes=20)
    assert small.chosen().chunks == 1
    assert small.made == [WHOLE]


def test_the_smallest_peak_is_one_with_layers_in_chunks() -> None:
    graph = Layered(1)
    assert graph.chosen().peak_bytes == 400 + 600 // 16
    assert graph.planned == [WHOLE, ALL_IN_4, ALL_IN_16]


def test_layers_stay_whole_if_the_plan_with_chunks_has_no_lower_peak() -> None:
    graph = Layered(1, reached_bytes={4: 1000})
    assert graph.chosen().chunks == 1
    assert graph.planned == [WHOLE, ALL_IN_4]


def test_more_chunks_are_expected_to_gain_no_more_than_few_did() -> None:
    graph = Layered(1, reached_bytes={4: 930})
    assert graph.chosen().chunks == 4
    assert graph.made == graph.planned == [WHOLE, ALL_IN_4]


def test_layers_of_few_rows_are_planned_once() -> None:
    graph = Layered(1, most=4)
    assert graph.chosen().chunks == 4
    assert (graph.made, graph.planned) == ([WHOLE, ALL_IN_4, ALL_IN_16], [WHOLE, ALL_IN_4])


def test_the_first_plan_that_fits_is_taken() -> None:
    graph = Layered(600)
    assert graph.chosen().chunks == 4
    assert graph.planned == [WHOLE, ALL_IN_4]


def test_what_no_plan_with_layers_in_chunks_can_reach_is_not_planned() -> None:
    graph = Layered(1, floor_bytes=990)
    assert graph.chosen().chunks == 1
    assert (graph.made, graph.planned) == ([WHOLE, ALL_IN_4], [WHOLE])


def test_a_refusal_names_the_smallest_peak_with_layers_in_chunks() -> None:
    graph = Layered(10, take_smallest=False)
    with pytest.raises(NoPlan) as refused:
        graph.chosen()
    assert refused.value.needed_bytes == 400 + 600 // 16


@pytest.mark.parametrize("graph", [Layered(1, broken=True), Layered(1, within_bytes=-1)], ids=["planned", "looked_at"])
def test_a_defect_in_layers_leaves_them_whole(graph: Layered) -> None:
    with warnings_heard() as heard:
        assert graph.chosen().chunks == 1
    assert [text for text in heard if "layers are not computed in 4 chunks, since that failed (ValueError" in text]


@pytest.mark.parametrize(("budget_bytes", "layers"), [(1, 16), (990, 16), (2000, 1)])
def test_where_nothing_fits_whole_layers_are_planned_again_beside_those_in_chunks(
    budget_bytes: int, layers: int
) -> None:
    # Another order may need less of whole layers.
    graph = Layered(budget_bytes)
    request = PartitionRequest(budget_bytes, take_smallest=True)
    chosen: Any = cheapest_in_chunks(request, graph.in_chunks, {2000: Served(IN_16, fits=False)}, losses=False)
    assert chosen.chunks == layers
    assert set(graph.planned) == {WHOLE, IN_16}


def test_losses_that_are_the_floor_of_layers_in_chunks_are_in_more_chunks() -> None:
    graph = Layered(1, loss_bytes=400)
    # Beside whole layers the loss is none.
    assert graph.chosen(losses=True).peak_bytes == 400 + 600 // 4
    assert graph.planned == [WHOLE, ALL_IN_4, ALL_IN_4._replace(losses=4), ALL_IN_4._replace(losses=16)]


def test_losses_are_in_no_more_chunks_where_layers_are_the_floor() -> None:
    graph = Layered(1, loss_bytes=10)
    graph.chosen(losses=True)
    assert graph.planned == [WHOLE, ALL_IN_4, ALL_IN_16]


def test_layers_are_cut_beside_losses_in_as_many_chunks_as_leave_something_to_gain() -> None:
    # Losses in 4 chunks are no more than whole layers, but nearly as much.
    graph = Layered(1, loss_bytes=2380)
    assert graph.chosen(losses=True).peak_bytes == 550
    assert Chunks(4) in graph.planned
    assert ALL_IN_4._replace(losses=16) in graph.planned


@pytest.mark.parametrize("budget_bytes", [950, 600])
def test_layers_are_not_cut_beside_losses_whose_floor_is_above_the_budget(budget_bytes: int) -> None:
    graph = Layered(budget_bytes, loss_bytes=2260)
    assert graph.chosen(losses=True).peak_bytes == budget_bytes
    assert [one for one in graph.planned if one.layers > 1] == [ALL_IN_4._replace(losses=16)]
