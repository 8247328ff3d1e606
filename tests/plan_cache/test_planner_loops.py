"""Who waits for loops to be compiled is told why, once, and nobody else is."""

from __future__ import annotations

import logging
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest

from remat_compiler.plan_cache import planner_loops
from remat_passes.blocks.dp import fill_tables


def compilation_of(function: FunctionType) -> Any:
    """What Numba tells of one."""
    return SimpleNamespace(data={"dispatcher": SimpleNamespace(py_func=function)})


@pytest.mark.parametrize(
    ("seconds", "ours", "told"),
    [
        pytest.param([0.0, 0.5, 1.9], True, 0, id="all is compiled soon"),
        pytest.param([0.0, 1.0, 2.5, 9.0], True, 1, id="it takes long"),
        pytest.param([0.0, 1.0, 2.5, 9.0], False, 0, id="loops of others"),
    ],
)
def test_a_long_wait_is_explained_once(
    seconds: list[float], ours: bool, told: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    function = getattr(fill_tables, "py_func", fill_tables) if ours else compilation_of
    clock = iter(seconds)
    monkeypatch.setattr(planner_loops.time, "monotonic", lambda: next(clock))
    listener = planner_loops._listener(object)()
    with caplog.at_level(logging.WARNING, logger="remat_compiler"):
        for _ in seconds[:-1]:
            listener.on_start(compilation_of(function))
    assert sum("once for this installation" in record.message for record in caplog.records) == told


def test_what_passes_between_compilations_does_not_count(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = iter([0.0, 0.1, 100.0, 100.1, 200.0, 200.1])
    monkeypatch.setattr(planner_loops.time, "monotonic", lambda: next(clock))
    listener, event = planner_loops._listener(object)(), compilation_of(fill_tables.py_func)  # type: ignore[attr-defined]
    with caplog.at_level(logging.WARNING, logger="remat_compiler"):
        for _ in range(3):
            listener.on_start(event)
            listener.on_end(event)
    assert not caplog.records
