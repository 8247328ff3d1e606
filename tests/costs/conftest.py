"""Fixed rates for tests of the cost models: they must not depend on how busy the machine is."""

from __future__ import annotations

import pytest

from remat_compiler.costs import rates
from remat_compiler.costs.calibration import PRODUCT_TYPES, Calibration, type_name
from remat_compiler.costs.families import FAMILIES
from remat_compiler.costs.store import shared_store

IDLE_CORE = {
    **{f"cpu flops_per_s {type_name(t)}": 2**36 for t in PRODUCT_TYPES},
    **{f"cpu flops_per_s {family}": 2**35 for family in FAMILIES},
    "cpu bytes_per_s": 2**33,
    "cpu special_per_s": 2**30,
    "cpu overhead_ns": 2**12,
}


@pytest.fixture(autouse=True)
def calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibration finds an idle core."""
    monkeypatch.setattr(rates, "calibrate", lambda _: Calibration(dict(IDLE_CORE)))
    shared_store.cache_clear()


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """No device was found too busy by an earlier test of the process."""
    monkeypatch.setattr(rates, "_busy", set())
