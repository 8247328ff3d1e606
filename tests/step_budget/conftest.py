"""What several files of these tests look at."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _steps_of_its_own(steps_of_its_own: None) -> None:
    """For every test of this folder."""
