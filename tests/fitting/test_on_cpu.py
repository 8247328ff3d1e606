"""Training on the CPU of this machine: what is said of it on paper is what a real step takes, to the byte."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import remat_compiler
from fitting.cpu_answers import PROCESSOR, Budgets, on_paper, really, tries_large_operators
from fitting.paper_models import Language, language
from remat_compiler.cli.main import main
from remat_compiler.devices.gpus import GPUS
from remat_compiler.errors import OptionError
from remat_compiler.fitting.at_hand import device_of
from remat_compiler.fitting.fit import located
from remat_compiler.fitting.fit_report import FitPoint, FitReport
from remat_compiler.fitting.paper_process import call_in_process
from remat_compiler.fitting.pareto_report import CurvePoint, ParetoReport
from remat_compiler.fitting.request import FitRequest

NOMINAL = {"inner": "eager", "cost_model": "nominal"}
ASKED: dict[str, Budgets] = {"language": (None, 0.7, "min"), "vision": (None, "min"), "checkpointed": (None, 0.7)}
"""Budgets of each model."""
GIB = 2**30


@pytest.fixture(scope="module", autouse=True)
def without_a_cache() -> Iterator[None]:
    """Plans of earlier runs would take the place of those that are looked at; the processes inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REMAT_DISABLE_CACHE", "1")
        yield


def inputs(batch: int) -> Any:
    return language(batch)[1]


@pytest.mark.parametrize(
    ("inner", "model", "budgets"),
    [
        *(("eager", model, budgets) for model, budgets in ASKED.items()),
        pytest.param("inductor", "language", (None, 0.7), marks=pytest.mark.slow),
    ],
)
def test_a_step_takes_what_was_said(inner: str, model: str, budgets: Budgets) -> None:
    said = call_in_process(on_paper, model, budgets, inner)
    taken = call_in_process(really, model, budgets, inner)
    assert [(point.budgeted_bytes, point.step_bytes) for point in said] == taken
    peaks = [point.budgeted_bytes for point in said]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[-1] < peaks[0]


def test_what_is_resident_is_counted_and_nothing_is_reserved() -> None:
    report = remat_compiler.fit(Language, inputs, device=PROCESSOR, batches=[16], options=NOMINAL)
    (point,) = report.points
    parameters = sum(parameter.numel() * 4 for parameter in Language().parameters())
    counts = 4 * sum(1 for _ in Language().parameters())
    assert (point.parameter_bytes, point.optimizer_bytes) == (parameters, 2 * parameters + counts)
    assert point.peak_bytes == point.parameter_bytes + point.optimizer_bytes + point.input_bytes + point.step_bytes
    assert (point.reserved_bytes, point.library_bytes, point.in_use_bytes) == (0, 0, 0)
    assert report.left_bytes(point) == PROCESSOR.usable_bytes - point.peak_bytes
    assert report.fits(point)
    told = str(report)
    assert "a processor, 1 threads: 16.00 GiB, of which 8.00 GiB are left to the step" in told
    assert "nominal rates of one core, since this CPU could not be timed" in told
    assert not any(word in told for word in ("reserved", "cuBLAS", "allocator", "data sheet"))


def test_a_table_of_several_batches_has_no_column_of_an_allocator() -> None:
    points = [
        FitPoint(8, forward_bytes=GIB, step_ns=10**6, unmodelled=("aten.sort.default",)),
        FitPoint(16, problem="too large"),
    ]
    lines = str(FitReport.of(PROCESSOR, None, points)).splitlines()
    assert lines[3].split() == ["batch", "fits", "step", "allocated", "left", "time,", "modelled", "added"]
    assert lines[4].split()[:8] == ["8", "yes", "1.00", "GiB", "1.00", "GiB", "7.00", "GiB"]
    unknown = "not known, and counted as 0: what these take inside: aten.sort.default"
    assert lines[-2:] == ["batch 16: too large", unknown]
    curve = str(ParetoReport(PROCESSOR, 8, (CurvePoint(None, points[0]), CurvePoint("min", points[1]))))
    assert "allocated  time, modelled  added  at least" in curve
    assert "reserved" not in curve
    assert curve.endswith(f"{unknown}\n")
    measured = FitReport.of(replace(PROCESSOR, figures={"bytes_per_s": 1}), None, points)
    assert "modelled by rates measured on this CPU" in str(measured)


def test_what_does_not_fit_is_said() -> None:
    small = replace(PROCESSOR, usable_bytes=2**20)
    report = remat_compiler.fit(Language, inputs, device=small, batches=[16], options=NOMINAL)
    assert not report.fits(report.points[0])
    assert str(report).endswith("it does not fit\n")


def test_the_largest_batch_fits_the_capacity_and_the_next_does_not() -> None:
    found = remat_compiler.max_batch(Language, inputs, device=PROCESSOR, capacity="32MiB", options=NOMINAL)
    (point,) = found.report.points
    assert point.batch == found.batch > 1
    assert point.peak_bytes <= 32 * 2**20
    assert found.next is not None
    assert found.next.slack_bytes() < 0
    assert "caching allocator" not in str(found)


def test_this_machine_is_read() -> None:
    """Its rates, and what it has left beside torch."""
    cpu = located(FitRequest(language, "cpu", options=NOMINAL)).known_device
    assert cpu.name == "cpu"
    assert 0 < cpu.usable_bytes < cpu.total_bytes
    limited = device_of("cpu", "3GiB")
    assert limited.usable_bytes == 3 * GIB
    processor: Any = torch.device("cpu")
    assert device_of(processor, 5 * GIB).usable_bytes == 5 * GIB


def test_a_capacity_limits_a_gpu_too() -> None:
    assert device_of("t4").usable_bytes > 8 * GIB
    assert device_of("t4", "8GiB").usable_bytes == device_of(GPUS["t4"], 8 * GIB).usable_bytes == 8 * GIB
    with pytest.raises(OptionError, match=r"got capacity='20GiB', and Tesla T4 leaves 14\.0 GiB to torch; name less"):
        device_of("t4", "20GiB")


@pytest.mark.parametrize("capacity", ["", "half", "0.5", 0.5, -1, "50%", "min", "4XB", True])
def test_a_capacity_is_bytes(capacity: Any) -> None:
    with pytest.raises(OptionError, match=r"capacity \(--capacity\) must be bytes, such as '16GiB' or 17179869184"):
        device_of("t4", capacity)


def test_without_a_compiler_the_user_reads_what_helps() -> None:
    bare = replace(PROCESSOR, compiler="")
    with pytest.raises(OptionError, match="needs a C\\+\\+ compiler, and none is found: install one, or set CXX"):
        located(FitRequest(language, bare))
    assert located(FitRequest(language, bare, options={"inner": "eager"})).device is bare


def test_operators_that_are_too_large_to_be_tried_are_named() -> None:
    """On paper nothing of the size of the step is to be there, if the machine has no room for it."""
    assert call_in_process(tries_large_operators, 2**40) == ()
    assert any("convolution" in name for name in call_in_process(tries_large_operators, 2**16))


def test_the_command_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "import torch\n"
        "from torch import nn\n"
        "def make(batch):\n"
        "    return nn.Linear(64, 64), torch.zeros(batch, 64), lambda y: y.square().mean()\n"
        "def on_a_gpu(batch):\n"
        "    return nn.Linear(64, 64), torch.zeros(batch, 64, device='meta'), lambda y: y.square().mean()\n"
    )
    arguments = ["--device", "cpu", "--capacity", "1GiB", "--inner", "eager", "--batch", "16"]
    assert main(["fit", f"{file}:make", *arguments, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["device"], record["usable_bytes"], record["context_bytes"]) == ("cpu", GIB, 0)
    assert record["points"][0]["fits"]
    assert main(["fit", f"{file}:on_a_gpu", *arguments]) == 2
    assert "on meta, and the step is to fit cpu; leave the device open, or name cpu" in capsys.readouterr().err
