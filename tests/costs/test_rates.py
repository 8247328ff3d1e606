"""Rates are calibrated once, rounded, kept; what cannot be calibrated gets the nominal ones."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from remat_compiler.costs import calibration, families, rates
from remat_compiler.costs.calibration import Calibration, calibrate, is_confirmed, rounded
from remat_compiler.costs.families import FAMILIES
from remat_compiler.costs.plausible import implausible
from remat_compiler.costs.rates import NOMINAL, rates_of
from remat_compiler.costs.store import shared_store
from remat_compiler.devices.gpus import GPUS, Gpu
from remat_compiler.operators.table import family_of


@given(st.floats(1e3, 1e15))
def test_rounding_goes_to_the_nearest_quarter_octave(figure: float) -> None:
    assert abs(math.log2(rounded(figure) / figure)) <= 1 / 8 + 1e-3
    assert rounded(rounded(figure)) == rounded(figure)


@pytest.fixture(autouse=True)
def _another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of calibrations of this process."""
    monkeypatch.setattr(rates, "_repeated", set())
    shared_store.cache_clear()


@pytest.fixture
def figures() -> dict[str, int]:
    """What an idle device might give: the test must not depend on how busy this one is."""
    return {name: max(figure, 2**34) for name, figure in calibrate("cpu").figures.items()}


def test_calibrated_rates_are_rounded_and_positive() -> None:
    found = calibrate("cpu").figures
    assert all(figure == rounded(figure) for figure in found.values())
    assert min(found.values()) > 0


class Types(TorchDispatchMode):
    """Notes the types that operators compute with."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.seen |= {one.dtype for one in (*args, result) if isinstance(one, torch.Tensor)}
        return result


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_rates_are_not_those_of_the_programs_default_type(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are kept for programs that have another one."""
    types = Types()

    def once(run: Callable[[], object], *_: object, **__: object) -> float:
        with types:
            run()
        return 1e9

    monkeypatch.setattr(calibration, "best_computing_ns", once)
    monkeypatch.setattr(families, "best_computing_ns", once)
    monkeypatch.setattr(calibration, "PRODUCT_TYPES", ())
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        calibrate("cpu")
    finally:
        torch.set_default_dtype(before)
    assert types.seen == {torch.float32, torch.uint8}


def test_figures_of_a_busy_device_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figures: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rates, "calibrate", lambda _: Calibration({**figures, "cpu flops_per_s float32": 10**9}))
    monkeypatch.setattr(rates, "_busy", set())
    with caplog.at_level(logging.WARNING):
        assert rates_of("cpu", tmp_path) is NOMINAL
    monkeypatch.setattr(rates, "calibrate", lambda _: Calibration(figures))
    assert rates_of("cpu", tmp_path) is NOMINAL
    assert not list(tmp_path.iterdir())
    assert "busy" in caplog.text


def test_a_device_is_calibrated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figures: dict[str, int]) -> None:
    monkeypatch.setattr(rates, "calibrate", lambda _: Calibration(figures))
    first = rates_of("cpu", tmp_path)
    assert [path.name.partition("-")[0] for path in tmp_path.iterdir()] == ["rates"]

    def never(device_type: str) -> Calibration:
        raise AssertionError(f"calibrated {device_type} again")

    monkeypatch.setattr(rates, "calibrate", never)
    assert rates_of("cpu", tmp_path) == first
    shared_store.cache_clear()
    assert rates_of("cpu", tmp_path) == first


def test_without_a_folder_a_process_calibrates_once(monkeypatch: pytest.MonkeyPatch, figures: dict[str, int]) -> None:
    calls: list[str] = []

    def counted(device_type: str) -> Calibration:
        calls.append(device_type)
        return Calibration(figures)

    monkeypatch.setattr(rates, "calibrate", counted)
    shared_store.cache_clear()
    assert rates_of("cpu", None) == rates_of("cpu", None)
    assert calls == ["cpu"]


def under_load(monkeypatch: pytest.MonkeyPatch, samples: Mapping[str, Sequence[float]]) -> None:
    """A device whose figures are measured as `samples` say, in turn; the last one again and again."""
    left = {name: list(found) for name, found in samples.items()}

    def probe(name: str) -> float:
        return left[name].pop(0) if len(left[name]) > 1 else left[name][0]

    monkeypatch.setattr(calibration, "_probes", lambda _: {name: partial(probe, name) for name in left})
    monkeypatch.setattr(calibration, "PAUSE_S", 0.0)


def test_a_figure_counts_once_another_sample_confirms_it(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = {"flops_per_s convolution": [1.2e10, 1.4e11, 3e10, 1.35e11], "overhead_ns": [9e3, 2e3, 5e3, 2.1e3]}
    under_load(monkeypatch, samples)
    found = calibrate("cpu")
    assert found.unconfirmed == ()
    assert found.figures == {
        "cpu flops_per_s convolution": rounded(1.4e11),
        "cpu overhead_ns": rounded(2e3),
    }


def test_samples_that_never_agree_are_unconfirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    falling = [2.0**n for n in range(40, 40 - calibration.MOST_ROUNDS, -1)]
    under_load(monkeypatch, {"bytes_per_s": falling, "special_per_s": [1e9]})
    found = calibrate("cpu")
    assert found.unconfirmed == ("cpu bytes_per_s",)
    assert found.figures["cpu bytes_per_s"] == 2**40


def test_a_sample_far_above_all_others_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    under_load(monkeypatch, {"flops_per_s float16": [2e9, 9e9, 2.05e9, 1e9]})
    found = calibrate("cpu")
    assert found.unconfirmed == ()
    assert found.figures["cpu flops_per_s float16"] == rounded(2.05e9)


@given(st.lists(st.floats(1.0, 1e12), min_size=2, max_size=8), st.sampled_from(["bytes_per_s", "overhead_ns"]))
def test_only_a_near_second_best_confirms(samples: list[float], name: str) -> None:
    first, second = sorted(samples, reverse=name == "bytes_per_s")[:2]
    assert is_confirmed(name, samples) == (abs(math.log2(first / second)) <= 1 / 8)


def test_unconfirmed_figures_hold_for_this_process_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figures: dict[str, int]
) -> None:
    unconfirmed = ("cpu bytes_per_s",)
    monkeypatch.setattr(rates, "calibrate", lambda _: Calibration(figures, unconfirmed))
    first = rates_of("cpu", tmp_path)
    assert first.bytes_per_s == figures["cpu bytes_per_s"]
    assert not list(tmp_path.iterdir())


def test_implausible_figures_are_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figures: dict[str, int]
) -> None:
    whole = {name: 2**36 if "flops" in name else figure for name, figure in figures.items()}
    slow = {**whole, "cpu flops_per_s convolution": 2**31, "cpu bytes_per_s": 2 * whole["cpu bytes_per_s"]}
    assert implausible("cpu", slow) == ["convolution"]
    monkeypatch.setattr(rates, "calibrate", lambda _: Calibration(slow))
    assert rates_of("cpu", tmp_path).efficiency["convolution"] == 2**-5
    # Not twice in one process, but in the next one; the better of each figure is kept.
    monkeypatch.setattr(rates, "calibrate", lambda _: Calibration(whole))
    assert rates_of("cpu", tmp_path).efficiency["convolution"] == 2**-5
    monkeypatch.setattr(rates, "_repeated", set())
    shared_store.cache_clear()
    mended = rates_of("cpu", tmp_path)
    assert mended.efficiency["convolution"] == 1.0
    assert mended.bytes_per_s == slow["cpu bytes_per_s"]


def test_a_device_that_stays_odd_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figures: dict[str, int]
) -> None:
    calls: list[str] = []
    odd = {name: 2**36 if "flops" in name else figure for name, figure in figures.items()}
    odd["cpu flops_per_s attention"] = 2**31

    def counted(device_type: str) -> Calibration:
        calls.append(device_type)
        return Calibration(odd)

    monkeypatch.setattr(rates, "calibrate", counted)
    for _ in range(rates.MOST_REPEATED + 2):
        monkeypatch.setattr(rates, "_repeated", set())
        shared_store.cache_clear()
        rates_of("cpu", tmp_path)
    assert len(calls) == rates.MOST_REPEATED


def test_the_random_state_is_left_alone() -> None:
    state = torch.get_rng_state()
    calibrate("cpu")
    assert torch.equal(torch.get_rng_state(), state)


def test_nominal_rates_stand_for_what_cannot_be_calibrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert rates_of("meta", tmp_path) is NOMINAL

    def fails(device_type: str) -> Calibration:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(rates, "calibrate", fails)
    monkeypatch.setattr(rates, "_busy", set())
    with caplog.at_level(logging.WARNING):
        assert [rates_of("cpu", tmp_path) is NOMINAL for _ in range(2)] == [True, True]
    assert caplog.text.count("out of memory") == 1, "one answer for the whole process, told once"


@pytest.fixture
def a_card(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """torch says that an H100 is there."""
    sheet = GPUS["h100"]
    said = SimpleNamespace(name=sheet.product, major=9, minor=0, multi_processor_count=sheet.sms)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: said)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: sheet.product)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(rates, "_busy", set())
    return sheet


def test_the_data_sheet_stands_for_a_gpu_without_memory(a_card: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(device_type: str) -> Calibration:
        raise torch.cuda.OutOfMemoryError("out of memory")

    monkeypatch.setattr(rates, "calibrate", fails)
    assert rates_of("cuda", None) == rates.paper_rates(a_card)


def test_families_are_no_faster_than_a_data_sheet_would_say(a_card: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions of float32 are timed in TensorFloat-32, and products are not."""
    figures = dict.fromkeys((f"cuda {name}" for name in calibration.FIGURES), 2**45)
    figures |= {"cuda flops_per_s convolution": 2**47, "cuda flops_per_s attention": 2**44}
    monkeypatch.setattr(rates, "calibrate", lambda _: Calibration(figures))
    found = rates_of("cuda", None)
    assert found.efficiency["convolution"] == rates.FAMILY_SHARES["convolution"]
    assert found.efficiency["attention"] == 0.5
    assert found.name == a_card.product


def test_families_of_kernels() -> None:
    aten = torch.ops.aten
    found = [
        family_of(str(op))
        for op in (
            aten.convolution.default,
            aten.convolution_backward.default,
            aten._scaled_dot_product_flash_attention_for_cpu.default,
            aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
            aten.mm.default,
        )
    ]
    assert found == [*FAMILIES, ""]


def test_the_rate_of_a_kernel_follows_its_type_and_family() -> None:
    some = rates.Rates({"float32": 100.0, "bfloat16": 400.0}, {"convolution": 0.5}, 1.0, 1.0, 1, "some")
    assert some.kernel_rate("", torch.bfloat16) == 400.0
    assert some.kernel_rate("convolution", torch.bfloat16) == 200.0
    assert some.kernel_rate("attention", torch.int8) == 100.0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_device_is_calibrated() -> None:
    assert calibrate("cuda").figures["cuda flops_per_s float32"] > 1e11
