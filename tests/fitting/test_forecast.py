"""The largest batch by plans of steps that were not captured, held against planning each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from builders import ProblemBuilder, chain
from remat_compiler.devices.allocator_setting import segments_expand
from remat_compiler.devices.gpus import GPUS
from remat_compiler.fitting.batch_search import Search
from remat_compiler.fitting.fit_report import FitPoint, FitReport
from remat_compiler.fitting.forecast import forecast
from remat_compiler.fitting.outline import Outline, at_batch
from remat_compiler.fitting.room import Confirmed, Question, Room
from remat_compiler.ir.graph import StorageKind
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.lives import Life

MIB = 2**20
LEFT = 300 * MIB
USABLE = 385 * MIB


def problem(batch: int) -> RematProblem:
    """Twelve layers whose activations grow with the batch, and whose gradients do not."""
    one = chain(12)
    kinds = {StorageKind.GRADIENT: 2 * MIB}
    storages = tuple(replace(s, size_bytes=kinds.get(s.kind, batch * MIB // 2)) for s in one.graph.storages)
    return replace(one, graph=replace(one.graph, storages=storages))


def outline(batch: int, *, expandable: bool = True, left_bytes: int = LEFT) -> Outline:
    made = Outline(
        batch=batch,
        problem=problem(batch),
        planner="dtr",
        time_limit=None,
        reorders=False,
        left_bytes=left_bytes - batch,
        usable_bytes=USABLE,
        expandable=expandable,
        resident_bytes=(30 * MIB, batch),
        state_bytes=(20 * MIB, 20 * MIB),
        update=(Life(10 * MIB, 0, 1),),
        smallest=None,  # type: ignore[arg-type]
    )
    plan = made.plan(1)
    assert plan is not None
    return replace(made, smallest=plan)


def fits(one: Outline) -> bool:
    plan = one.plan(1)
    return plan is not None and one.has_room(plan)


def largest(*, expandable: bool) -> int:
    """By planning every batch."""
    return max((n for n in range(1, 200) if fits(outline(n, expandable=expandable))), default=0)


def test_a_step_at_another_batch_is_that_step() -> None:
    found = at_batch(outline(16), outline(64), 40)
    assert found is not None
    assert found.problem.graph == problem(40).graph
    assert (found.batch, found.left_bytes, found.resident_bytes) == (40, LEFT - 40, (30 * MIB, 40))


def test_steps_of_other_shapes_tell_nothing() -> None:
    b = ProblemBuilder()
    other = replace(outline(64), problem=b.problem())
    assert at_batch(outline(16), other, 40) is None
    assert forecast([outline(16), other], 200) is None


@pytest.mark.parametrize("expandable", [True, False])
def test_the_largest_batch_is_foreseen(expandable: bool) -> None:
    known = [outline(n, expandable=expandable) for n in (16, 64)]
    found = forecast(known, 199)
    assert found is not None
    assert found.batch == largest(expandable=expandable) > 64
    there = outline(found.batch, expandable=expandable)
    plan = there.plan(found.budget_bytes)
    assert plan is not None
    assert there.has_room(plan)
    assert not fits(outline(found.batch + 1, expandable=expandable))


def test_not_even_one_is_foreseen() -> None:
    found = forecast([outline(n, left_bytes=1000) for n in (16, 64)], 199)
    assert found is not None
    assert found.batch == 0


def test_the_search_compiles_what_is_foreseen_and_plans_the_next_beside_it() -> None:
    rounds: list[list[tuple[int, bool]]] = []

    def ask(questions: Sequence[Question]) -> list[Room | Confirmed]:
        rounds.append([(one.batch, one.confirm) for one in questions])
        return [confirmed(one) if one.confirm else room(one.batch) for one in questions]

    def room(batch: int) -> Room:
        one = outline(batch, expandable=False)
        return Room(batch, one.left_bytes, one.peak_bytes(one.smallest), one.over_bytes(one.smallest), one)

    def confirmed(question: Question) -> Confirmed:
        report = FitReport.of(GPUS["t4"], None, [FitPoint(question.batch)])
        return Confirmed(report, question.budget_bytes, 0.0)

    found = Search(ask).run()
    batch, without = largest(expandable=True), largest(expandable=False)
    assert [one for asked in rounds[1:] for one in asked] == [(without, True), (without + 1, False)]
    assert found.batch == without
    assert found.next is not None
    assert found.next.slack_bytes() < 0
    # The allocator is in the way if, and only if, expandable segments would let more in.
    assert found.expandable_batch == (batch if found.next.over_bytes and batch > without else None)
    assert ("expandable_segments" in str(found)) == (found.expandable_batch is not None)


@pytest.mark.parametrize(
    ("environment", "expand"),
    [
        ({}, False),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, True),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:64, expandable_segments:true"}, True),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}, False),
    ],
)
def test_the_setting_of_the_allocator_is_read_as_torch_reads_it(environment: dict[str, str], expand: bool) -> None:
    assert segments_expand(environment) is expand
