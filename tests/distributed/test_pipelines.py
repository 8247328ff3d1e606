"""Pipelines of micro-batches: several forwards are under way before the first backward, and all share the budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

from distributed.rank_job import asked
from distributed.rank_job import trained as trained_by

Job = Callable[[str], list[Any]]
SIZE = 2
ACTIVATION = 8 * 24 * 32 * 4
"""Bytes that stages hand on for each micro-batch."""
SCALARS = 64
"""Bytes of a few single numbers, which may be counted and not allocated."""
RECEIVED = {"gpipe": 4 * ACTIVATION, "1f1b": 4 * ACTIVATION, "interleaved": 12 * ACTIVATION}
"""Most bytes that a rank receives into: for each micro-batch, what its stages get from each neighbour."""
SCHEDULES = ["gpipe", "1f1b", pytest.param("interleaved", marks=pytest.mark.slow)]
HALVED = pytest.param("zero bubble", marks=pytest.mark.slow)
pytestmark = [
    pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch has no gloo"),
]


@pytest.fixture(scope="module")
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[Any]]:
    """What each rank tells of a schedule; one job has all that are asked for."""
    ranks = trained_by("pipelines_program.py", SIZE, tmp_path_factory.mktemp("pipelines"), *asked(request, "schedule"))
    return lambda schedule: [
        {name: case for name, case in rank.items() if name.partition(",")[0] == schedule} for rank in ranks
    ]


def predicted(case: dict[str, Any]) -> int:
    """The predicted peak of the step."""
    (peak,) = {report[-1] for report in case["reports"]}
    assert isinstance(peak, int)
    return peak


@pytest.mark.parametrize("schedule", [*SCHEDULES, HALVED])
def test_losses_and_gradients_are_those_of_one_process_on_the_whole_batch(trained: Job, schedule: str) -> None:
    for rank in trained(schedule):
        assert rank
        assert {name: case["error"] for name, case in rank.items() if case["error"] > 1e-6} == {}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_peak_of_all_micro_batches_is_predicted(trained: Job, schedule: str) -> None:
    for rank in trained(schedule):
        for name in (schedule, f"{schedule}, tight"):
            case = rank[name]
            # A gradient that was received is counted with the graph, and lies in a buffer from before the step.
            assert -SCALARS <= predicted(case) - case["measured"][-1] <= ACTIVATION + SCALARS, name


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_budget_is_kept_from_the_first_step_on(trained: Job, schedule: str) -> None:
    for rank in trained(schedule):
        case = rank[f"{schedule}, tight"]
        first, *others = case["measured"]
        # The schedule tells of the other micro-batches.  What ranks receive into is made in the first step, and stays.
        assert first <= case["budget"] + RECEIVED[schedule] + SCALARS
        assert not any("over memory_budget" in text for text in case["warnings"])
        assert any(added for _, _, added, _ in case["reports"]), "something is computed again, or nothing is shown"
        assert predicted(case) <= case["budget"]
        assert max(others) <= case["budget"]
        # On the last rank of 1F1B each micro-batch is a step of its own, planned for beside the gradients so far.
        assert not any("gradients of" in text for text in case["warnings"])


@pytest.mark.parametrize("schedule", [HALVED])
def test_a_backward_in_two_halves_holds_what_it_waits_for_on_top(trained: Job, schedule: str) -> None:
    """Each half runs the whole compiled backward; the schedule holds the incoming gradients in between."""
    for case in (rank[schedule] for rank in trained(schedule)):
        assert any(added for _, _, added, _ in case["reports"])
        assert case["measured"][-1] <= predicted(case) + 4 * ACTIVATION
