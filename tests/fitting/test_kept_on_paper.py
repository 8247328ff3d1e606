"""Budgets of the zoo's models on GPUs that are not there: kept, and predicted to the byte of the emitted code.

All models under all budgets are ``slow``: about half an hour for each GPU, and gpt2tiny96 as long again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from instruments.kept_rows import Row
from remat_compiler.fitting.paper_process import call_in_process
from studies.on_paper.kept_on_paper import Found, rows_on_paper
from studies.on_paper.random_on_paper import rows as random_rows
from zoo import names

pytest.importorskip("triton")
FRACTIONS = (0.9, 0.7, 0.5)
DEVICES = ("h100", "rtx4090")


@pytest.fixture(scope="module", autouse=True)
def without_a_cache() -> Iterator[None]:
    """Plans of earlier runs would take the place of those that are looked at; the processes inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REMAT_DISABLE_CACHE", "1")
        yield


def check(found: list[Found]) -> None:
    """Budgets are kept, or refused where no plan fits; predictions are exact; a smaller budget takes no more."""
    rows = [one for one in found if isinstance(one, Row)]
    refused = [one for one in found if isinstance(one, str)]
    assert all(one.startswith("refused: no plan fits") for one in refused), refused
    # The largest budget and the smallest peak are never refused.
    assert len(rows) >= 2
    assert all(row.kept for row in rows)
    assert [row.measured_bytes for row in rows] == [row.checked_bytes for row in rows]
    peaks = [row.measured_bytes for row in rows]
    assert peaks == sorted(peaks, reverse=True)


@pytest.mark.parametrize(
    ("device", "name"), [pytest.param("rtx4090", "gpt2", marks=pytest.mark.slow), ("h100", "nerf")]
)
def test_two_budgets_of_two_models_are_kept(device: str, name: str) -> None:
    check(call_in_process(rows_on_paper, device, name, "inductor", [0.7, "min"]))


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", names())
def test_budgets_of_all_models_are_kept(device: str, name: str) -> None:
    check(call_in_process(rows_on_paper, device, name, "inductor", [*FRACTIONS, "min"]))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 200, 10))
def test_budgets_of_random_programs_are_kept(first: int) -> None:
    found = call_in_process(random_rows, "h100", "inductor", range(first, first + 10), False)
    verdicts = Counter(row["verdict"].partition(":")[0] for row in found)
    assert set(verdicts) <= {"kept", "as eager", "not one graph", "over, warned"}, found
    assert verdicts["kept"]
