"""Training by trainers: nothing is left of other tests, and options come from the environment, as from a launcher."""

from __future__ import annotations

from pathlib import Path

import pytest

OPTIONS = {"INNER": "eager", "COST_MODEL": "nominal", "MAX_SLOWDOWN": "none", "DISABLE_CACHE": "1"}


@pytest.fixture(autouse=True)
def quick_and_alone(compiles_anew: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in OPTIONS.items():
        monkeypatch.setenv(f"REMAT_{name}", value)
