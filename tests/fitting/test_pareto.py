"""What budgets cost, the largest batch, and plans, on GPUs that are not there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import remat_compiler
from fitting.paper_models import Language, language
from remat_compiler.cli.main import main
from remat_compiler.devices.gpus import GPUS
from remat_compiler.errors import OptionError
from remat_compiler.fitting.batch_search import Search
from remat_compiler.fitting.fit_report import FitPoint, FitReport
from remat_compiler.fitting.max_batch_report import MaxBatch
from remat_compiler.fitting.pareto_report import CurvePoint, ParetoReport
from remat_compiler.fitting.room import Confirmed, Question, Room
from remat_compiler.report.dump import read_reports

INTERPRETED = {"inner": "eager"}


@pytest.fixture(autouse=True)
def without_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMAT_DISABLE_CACHE", "1")


def inputs(batch: int) -> Any:
    return language(batch)[1]


@pytest.fixture(scope="module")
def curve() -> ParetoReport:
    return remat_compiler.pareto(Language, inputs, device="h100", points=4, batch=16, options=INTERPRETED)


@pytest.mark.in_turn
def test_a_smaller_budget_costs_more_time(curve: ParetoReport) -> None:
    budgets = [one.budget for one in curve.points]
    assert (budgets[0], budgets[-1], len(budgets)) == (None, "min", 4)
    peaks = [max(one.point.forward_bytes, one.point.backward_bytes) for one in curve.points]
    times = [one.point.step_ns for one in curve.points]
    assert peaks == sorted(peaks, reverse=True)
    assert times == sorted(times)
    for one, peak in zip(curve.points, peaks):
        assert one.point.planned_bytes == peak
        assert one.point.bound_ns <= one.point.added_ns
        assert curve.floor_bytes is not None
        assert curve.floor_bytes <= peak
        if isinstance(one.budget, int):
            assert peak <= one.budget


def test_the_curve_is_told_as_text_json_and_picture(curve: ParetoReport) -> None:
    assert [line.split()[0] for line in str(curve).splitlines()[4:8]][0::3] == ["none", "min"]
    assert [point["budget"] for point in json.loads(curve.to_json())["points"]] == [one.budget for one in curve.points]
    ElementTree.fromstring(curve.to_svg())


def test_a_curve_without_points_or_with_one_is_drawn() -> None:
    refused = CurvePoint(None, FitPoint(problem="too small"))
    for points in ([refused], [CurvePoint(None, FitPoint(step_ns=5, forward_bytes=7)), refused]):
        report = ParetoReport(GPUS["t4"], None, tuple(points))
        ElementTree.fromstring(report.to_svg())
        assert "too small" in str(report)


@pytest.mark.parametrize("points", [1, 0, 2.5, "6"])
def test_a_curve_has_two_ends(points: Any) -> None:
    with pytest.raises(OptionError, match="at least 2"):
        remat_compiler.pareto(Language, inputs, device="h100", points=points, options=INTERPRETED)


@pytest.mark.in_turn
def test_the_largest_batch_fits_and_the_next_does_not() -> None:
    found = remat_compiler.max_batch(Language, inputs, device="t4", budget="16MiB", options=INTERPRETED)
    (point,) = found.report.points
    assert point.batch == found.batch > 1
    assert max(point.forward_bytes, point.backward_bytes) <= 16 * 2**20
    assert found.budget_bytes == 16 * 2**20
    assert found.next is not None
    assert found.next.batch == found.batch + 1
    assert found.next.needed_bytes > 16 * 2**20
    text = str(found)
    assert f"the largest is {found.batch}" in text
    assert f"{found.batch + 1} does not fit" in text
    record = json.loads(found.to_json())
    assert (record["max_batch"], record["next"]["batch"]) == (found.batch, found.batch + 1)


def test_emitted_code_that_takes_more_than_planned_makes_the_batch_smaller() -> None:
    """By as much as it takes more, and as often as that is so."""
    confirmed: list[tuple[int, float]] = []

    def ask(questions: Sequence[Question]) -> list[Room | Confirmed]:
        return [confirm(one) if one.confirm else Room(one.batch, 1000, 10 * one.batch) for one in questions]

    def confirm(question: Question) -> Confirmed:
        confirmed.append((question.batch, question.scale))
        fits = question.batch <= 70
        report = FitReport.of(GPUS["t4"], None, [FitPoint(question.batch, "" if fits else "too large")])
        return Confirmed(report, 1000, 0.0 if fits else 0.2)

    found = Search(ask).run()
    assert [batch for batch, _ in confirmed] == [100, 83, 69]
    assert [round(scale, 2) for _, scale in confirmed] == [1.0, 1.2, 1.44]
    assert (found.batch, found.next) == (69, None)


def test_not_even_one_fits() -> None:
    report = FitReport.of(GPUS["t4"], None, [FitPoint(1, "too large")])
    assert str(MaxBatch(0, None, report)).startswith("not even 1 fits\n")


def test_the_smallest_peak_is_no_budget_for_the_largest_batch() -> None:
    with pytest.raises(OptionError, match="leave it out"):
        remat_compiler.max_batch(Language, inputs, device="t4", budget="min", options=INTERPRETED)


@pytest.mark.in_turn
def test_a_plan_is_printed_and_dumped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "import torch\n"
        "from torch import nn\n"
        "def make(batch):\n"
        "    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(9))), torch.zeros(batch, 64), torch.sum\n"
    )
    dump, picture = tmp_path / "dump", tmp_path / "curve.svg"
    arguments = [f"{file}:make", "--device", "T4", "--inner", "eager", "--batch", "512"]
    assert main(["plan", *arguments, "--budget", "0.8", "--dump", str(dump)]) == 0
    assert "peak without a budget" in capsys.readouterr().out
    assert len(read_reports(dump)) == 1
    assert main(["plan", *arguments, "--budget", "0.8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["data"]["inner"] == "eager"
    assert main(["plan", *arguments, "--budget", "1KiB"]) == 2
    assert "smallest reachable peak" in capsys.readouterr().err
    assert main(["pareto", *arguments, "--points", "2", "--svg", str(picture)]) == 0
    assert "no plan of the step goes below" in capsys.readouterr().out
    ElementTree.parse(picture)
    assert main(["pareto", *arguments, "--svg", str(tmp_path / "nowhere" / "curve.svg")]) == 2
    assert "there is no folder" in capsys.readouterr().err
