"""What every test leaves as it was."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def inputs_declared_to_be_changing() -> Iterator[None]:
    """Which inputs Dynamo takes as changing holds for a whole process; a test that declares some keeps it to itself."""
    torch = sys.modules.get("torch")
    before = torch.compiler.config.dynamic_sources if torch is not None else ""
    yield
    torch = sys.modules.get("torch")
    if torch is not None and torch.compiler.config.dynamic_sources != before:
        torch.compiler.config.dynamic_sources = before
