"""Rates are calibrated once, rounded, kept; what cannot be calibrated gets the nominal ones."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from remat_compiler.costs import rates
from remat_compiler.costs.calibration import calibrate, rounded
from remat_compiler.costs.families import FAMILIES, family_of
from remat_compiler.costs.rates import NOMINAL, rates_of
from remat_compiler.costs.store import shared_store


@given(st.floats(1e3, 1e15))
def test_rounding_goes_to_the_nearest_quarter_octave(figure: float) -> None:
    assert abs(math.log2(rounded(figure) / figure)) <= 1 / 8 + 1e-3
    assert rounded(rounded(figure)) == rounded(figure)


@pytest.fixture
def figures() -> dict[str, int]:
    """What an idle device might give: the test must not depend on how busy this one is."""
    return {name: max(figure, 2**34) for name, figure in calibrate("cpu").items()}


def test_calibrated_rates_are_rounded_and_positive() -> None:
    found = calibrate("cpu")
    assert all(figure == rounded(figure) for figure in found.values())
    assert min(found.values()) > 0


def test_figures_of_a_busy_device_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figures: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rates, "calibrate", lambda _: {**figures, "cpu flops_per_s float32": 10**9})
    monkeypatch.setattr(rates, "_busy", set())
    shared_store.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert rates_of("cpu", tmp_path) is NOMINAL
    monkeypatch.setattr(rates, "calibrate", lambda _: figures)
    assert rates_of("cpu", tmp_path) is NOMINAL
    assert not list(tmp_path.iterdir())
    assert "busy" in caplog.text


def test_a_device_is_calibrated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figures: dict[str, int]) -> None:
    monkeypatch.setattr(rates, "calibrate", lambda _: figures)
    first = rates_of("cpu", tmp_path)
    assert [path.name.partition("-")[0] for path in tmp_path.iterdir()] == ["rates"]

    def never(device_type: str) -> dict[str, int]:
        raise AssertionError(f"calibrated {device_type} again")

    monkeypatch.setattr(rates, "calibrate", never)
    assert rates_of("cpu", tmp_path) == first
    shared_store.cache_clear()
    assert rates_of("cpu", tmp_path) == first


def test_without_a_folder_a_process_calibrates_once(monkeypatch: pytest.MonkeyPatch, figures: dict[str, int]) -> None:
    calls: list[str] = []

    def counted(device_type: str) -> dict[str, int]:
        calls.append(device_type)
        return figures

    monkeypatch.setattr(rates, "calibrate", counted)
    shared_store.cache_clear()
    assert rates_of("cpu", None) == rates_of("cpu", None)
    assert calls == ["cpu"]


def test_the_random_state_is_left_alone() -> None:
    state = torch.get_rng_state()
    calibrate("cpu")
    assert torch.equal(torch.get_rng_state(), state)


def test_nominal_rates_stand_for_what_cannot_be_calibrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert rates_of("meta", tmp_path) is NOMINAL

    def fails(device_type: str) -> dict[str, int]:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(rates, "calibrate", fails)
    monkeypatch.setattr(rates, "_busy", set())
    with caplog.at_level(logging.WARNING):
        assert [rates_of("cpu", tmp_path) is NOMINAL for _ in range(2)] == [True, True]
    assert caplog.text.count("out of memory") == 1, "one answer for the whole process, told once"


def test_families_of_kernels() -> None:
    aten = torch.ops.aten
    found = [
        family_of(op)
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
    assert calibrate("cuda")["cuda flops_per_s float32"] > 1e11
