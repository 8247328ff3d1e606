"""What budgets cost, the largest batch, and plans, on GPUs that are not there."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from html import escape
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
from remat_compiler.report.plan_report import ChunkedRegion

INTERPRETED = {"inner": "eager"}


@pytest.fixture(autouse=True)
def without_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMAT_DISABLE_CACHE", "1")


def inputs(batch: int) -> Any:
    return language(batch)[1]


@pytest.fixture(scope="module")
def curve() -> ParetoReport:
    return remat_compiler.pareto(Language, inputs, device="h100", points=4, batch=16, options=INTERPRETED)


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


def test_a_budget_below_what_the_updates_take_is_told() -> None:
    points = [
        CurvePoint(budget, FitPoint(forward_bytes=size, update_bytes=2**32, step_ns=9))
        for budget, size in ((None, 2**33), (2**31, 2**31), ("min", 2**30))
    ]
    told = str(ParetoReport(GPUS["h100"], 16, tuple(points))).splitlines()
    assert any(line.startswith("2GiB, min: the optimizer's step takes 4.00 GiB") for line in told)
    assert "optimizer" not in str(ParetoReport(GPUS["h100"], 16, tuple(points[:1])))


def words_of(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def made_up_curve(*budgets: int) -> ParetoReport:
    """The step without a budget, where it takes 8 GiB, under these budgets, and at its smallest peak of 4 GiB."""
    sizes: list[tuple[int | str | None, int]] = [(None, 2**33), *((one, one) for one in budgets), ("min", 2**32)]
    points = [
        CurvePoint(budget, FitPoint(backward_bytes=size - 1, in_use_bytes=size, step_ns=10**7 + n))
        for n, (budget, size) in enumerate(sizes)
    ]
    return ParetoReport(GPUS["h100"], 16, tuple(points))


def test_the_budget_to_write_can_be_read_from_the_picture_and_the_table() -> None:
    """Without a budget, and at the smallest peak, that is the least one under which the plan is the same."""
    curve = made_up_curve(6 * 2**30 + 1)
    words = words_of(curve.to_svg())
    assert {"6.01GiB", "none: 8GiB", "min: 4GiB"} <= set(words)
    assert any(word.startswith("memory_budget: what the step has on top of parameters") for word in words)
    assert "6.01GiB" in str(curve).split()
    (smallest,) = curve.points[-1:]
    assert smallest.drawn.budget_bytes == smallest.point.block_budget_bytes == 2**32


def test_labels_do_not_cover_each_other() -> None:
    crowded = made_up_curve(*(2**33 - n * 2**25 for n in range(1, 100)))
    labels = [word for word in words_of(crowded.to_svg()) if word.endswith("GiB") and " GiB" not in word]
    assert 4 < len(labels) < 11


def test_what_the_device_leaves_stands_at_what_is_left_beside_all_that_is_resident() -> None:
    held = FitPoint(parameter_bytes=2**33, backward_bytes=2**32, in_use_bytes=2**32, step_ns=5)
    room = FitPoint(parameter_bytes=2**33, backward_bytes=2**33, in_use_bytes=2**33, step_ns=4)
    for capacity, drawn in ((2**33 + 2**32 + 2**31, True), (2**36, False)):
        device = replace(GPUS["h100"], free_bytes=capacity)
        curve = ParetoReport(device, None, (CurvePoint(None, room), CurvePoint("min", held)))
        assert ("what the device leaves" in words_of(curve.to_svg())) is drawn


def test_answers_show_themselves_in_notebooks(curve: ParetoReport) -> None:
    shown = curve._repr_html_()
    assert shown.count("data:image/svg+xml;base64,") == 1
    for answer in (curve, curve.fits, MaxBatch(16, None, curve.fits)):
        html = answer._repr_html_()
        assert escape(str(answer).rstrip()) in html
        assert "<script" not in html
        assert len(html) < 100_000


@pytest.mark.parametrize("points", [1, 0, 2.5, "6"])
def test_a_curve_has_two_ends(points: Any) -> None:
    with pytest.raises(OptionError, match="at least 2"):
        remat_compiler.pareto(Language, inputs, device="h100", points=points, options=INTERPRETED)


def test_the_largest_batch_fits_and_the_next_does_not() -> None:
    """On a card where cuBLAS's workspaces have segments of their own, not parts of those of so small a step."""
    found = remat_compiler.max_batch(Language, inputs, device="h100", budget="16MiB", options=INTERPRETED)
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


def test_losses_in_chunks_are_told_with_their_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "words.py"
    file.write_text(
        "import torch\n"
        "from torch import nn\n"
        "class Words(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.head = nn.Linear(32, 4096)\n"
        "    def forward(self, x):\n"
        "        return nn.functional.cross_entropy(self.head(x), torch.zeros_like(x[:, 0], dtype=torch.long))\n"
        "def make(rows):\n"
        "    return Words(), torch.zeros(rows, 32)\n"
    )
    arguments = [f"{file}:make", "--device", "T4", "--inner", "eager"]
    told = r"batch (64|128): loss in \d+ chunks \(words.py:8\): \d+.\d [KM]iB → \d+.\d KiB\n"
    assert main(["plan", *arguments, "--batch", "64", "--budget", "min", "--chunks", "4"]) == 0
    assert "loss in 4 chunks (words.py:8): 1.0 MiB → 256.0 KiB\n" in capsys.readouterr().out
    assert main(["fit", *arguments, "--batch", "64,128", "--budget", "2.1MiB", "--chunks", "auto"]) == 0
    assert len(re.findall(told, capsys.readouterr().out)) == 2


def test_the_floor_of_a_curve_is_that_of_the_chunks_of_its_smallest_budget() -> None:
    loss = ChunkedRegion(16, "mm", "model.py:41", 2**27, 2**23)
    whole = FitPoint(backward_bytes=2**32, floor_bytes=2**31, floor_forced_by="mm at model.py:41")
    cut = replace(whole, backward_bytes=2**30, floor_bytes=2**29, chunked=(loss,))
    told = str(ParetoReport(GPUS["h100"], None, (CurvePoint(None, whole), CurvePoint("min", cut))))
    assert "\nmin: loss in 16 chunks (model.py:41): 128.0 MiB → 8.0 MiB\n" in told
    assert "\nno plan of the step in as many chunks goes below 0.50 GiB: mm at model.py:41\n" in told
    assert "no plan of the step goes below 2.00 GiB" in str(
        ParetoReport(GPUS["h100"], None, (CurvePoint(None, whole),))
    )
