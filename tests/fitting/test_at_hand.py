"""The GPU that is there: what torch says of it stands for it on paper, and errors where it cannot."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import remat_compiler
from fitting.paper_models import language
from fitting.paper_traces import decisions, figures_by_a_made_up_clock, rates
from remat_compiler.cli.main import main
from remat_compiler.costs.calibration import FIGURES
from remat_compiler.devices.gpus import CONTEXT_BYTES, GPUS, Gpu
from remat_compiler.errors import OptionError, UnknownName
from remat_compiler.fitting.at_hand import device_of, gpu_from
from remat_compiler.fitting.fit import answer
from remat_compiler.fitting.paper_process import call_in_process
from remat_compiler.fitting.request import FitRequest

MEASURED = {name: 10**12 + n for n, name in enumerate(FIGURES)}


def properties(name: str, capability: tuple[int, int] = (12, 0)) -> Any:
    """What torch says of a card."""
    return SimpleNamespace(
        name=name,
        major=capability[0],
        minor=capability[1],
        multi_processor_count=170,
        total_memory=32 * 2**30,
        L2_cache_size=96 * 2**20,
        max_threads_per_multi_processor=1536,
        shared_memory_per_multiprocessor=100 * 2**10,
        shared_memory_per_block_optin=99 * 2**10,
    )


def test_a_card_without_a_data_sheet_is_known_by_its_driver_and_by_calibration() -> None:
    gpu = gpu_from(properties("NVIDIA GeForce RTX 5090"), 1, 30 * 2**30, MEASURED)
    assert (gpu.name, gpu.product, gpu.capability) == ("cuda:1", "NVIDIA GeForce RTX 5090", (12, 0))
    assert (gpu.limits.threads, gpu.limits.optin_bytes) == (1536, 99 * 2**10)
    found = call_in_process(rates, gpu)
    assert found.flops_per_s["bfloat16"] == MEASURED["flops_per_s bfloat16"]
    assert (found.bytes_per_s, found.overhead_ns) == (MEASURED["bytes_per_s"], MEASURED["overhead_ns"])
    assert found.name == gpu.product


@pytest.mark.parametrize("name", ["h100", "a100", "rtx4090"])
def test_calibration_of_a_card_finds_the_rates_of_its_data_sheet(name: str) -> None:
    """Figures are rounded to a fourth of an octave."""
    sheet, figures = call_in_process(figures_by_a_made_up_clock, name)
    card = replace(GPUS[name], figures=figures)
    found = call_in_process(rates, card)
    near = pytest.approx
    assert found.flops_per_s == {kind: near(rate, rel=0.1) for kind, rate in sheet.flops_per_s.items()}
    assert found.efficiency == {family: near(share, rel=0.2) for family, share in sheet.efficiency.items()}
    assert found.bytes_per_s == near(sheet.bytes_per_s, rel=0.1)
    assert found.special_per_s == near(sheet.special_per_s, rel=0.1)
    assert found.overhead_ns == near(sheet.overhead_ns, rel=0.1)
    assert found.on_gpu
    assert sheet.on_gpu


def test_plans_by_calibration_are_those_by_the_data_sheet() -> None:
    """On this card no two values cost so nearly alike that the rounding of figures decides between them."""
    _, figures = call_in_process(figures_by_a_made_up_clock, "h100")
    card = replace(GPUS["h100"], figures=figures)
    by_sheet, by_figures = (call_in_process(decisions, gpu, 0.5) for gpu in (GPUS["h100"], card))
    assert by_figures == by_sheet
    assert any(decision == "recompute" for _, decision in by_sheet)


def test_what_others_use_of_the_card_is_not_left_to_torch() -> None:
    sheet = GPUS["rtx4090"]
    crowded = gpu_from(properties(sheet.product), 0, 10 * 2**30, {})
    assert crowded.usable_bytes == 10 * 2**30
    assert crowded.bytes_per_s == sheet.bytes_per_s
    idle = gpu_from(properties(sheet.product), 0, 32 * 2**30 - 10, {})
    assert idle.usable_bytes == 32 * 2**30 - CONTEXT_BYTES


@pytest.mark.parametrize("name", ["h100", "a100", "a100-40", "v100"])
def test_a_card_is_known_by_its_drivers_name(name: str) -> None:
    """Its links are those of the data sheet, whether it was timed or not."""
    sheet = GPUS[name]
    for figures in (MEASURED, {}):
        gpu = gpu_from(properties(sheet.product), 0, 2**34, figures)
        assert (gpu.link_bytes_per_s, gpu.peer_bytes_per_s) == (sheet.link_bytes_per_s, sheet.peer_bytes_per_s)


def test_a_card_of_which_nothing_is_known_says_so() -> None:
    with pytest.raises(OptionError, match="RTX 5080 cannot be timed"):
        gpu_from(properties("NVIDIA GeForce RTX 5080"), 0, 2**34, {})


def test_a_step_fits_a_card_that_was_read() -> None:
    gpu = gpu_from(properties("NVIDIA Made Up 1", (8, 9)), 0, 2**34, MEASURED)
    report = answer(FitRequest(language, gpu, None, (16,), None, "AdamW", {"inner": "eager"}))
    same = answer(FitRequest(language, "l40s", None, (16,), None, "AdamW", {"inner": "eager"}))
    assert report.fits(report.points[0])
    assert report.points[0].budgeted_bytes == same.points[0].budgeted_bytes
    assert "NVIDIA Made Up 1: 32.00 GiB, of which 16.00 GiB are left to torch" in str(report)


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks what happens without a GPU")
def test_without_a_gpu_one_has_to_be_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match=r"torch sees no GPU here; name the one that is meant: t4.*, or cpu to train"):
        remat_compiler.fit(torch.nn.Identity, lambda: torch.ones(1))
    assert main(["fit", f"{__file__}:properties", "--batch", "1"]) == 2
    assert "torch sees no GPU here" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["cuda:", "cuda:x", "gpu"])
def test_no_other_name_means_the_card_that_is_there(name: str) -> None:
    with pytest.raises(UnknownName, match="unknown device"):
        device_of(name)


def test_a_device_is_a_name_or_a_gpu() -> None:
    sheet = GPUS["t4"]
    assert device_of(sheet) is device_of("T4") is sheet
    other: Any = torch.device("mps")
    with pytest.raises(UnknownName, match="unknown device 'mps'"):
        device_of(other)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_card_that_is_there_is_read() -> None:
    gpu = device_of("cuda")
    assert isinstance(gpu, Gpu)
    assert gpu.product == torch.cuda.get_device_name()
    assert 0 < gpu.usable_bytes < gpu.total_bytes == torch.cuda.get_device_properties(0).total_memory
    assert gpu.figures["bytes_per_s"] > 1e10
