"""Arenas by size: when they are planned, and what happens where that fails."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from remat_compiler.arena.placing import SamePlaces
from remat_compiler.compilation.arenas_by_size import ArenasBySize
from remat_compiler.dry_run.dry_run import DryRun
from remat_compiler.dry_run.symbolic_run import SymbolicStep

STEP = SymbolicStep(("s0", "s1"), (), (), (), (), lambda sizes: nullcontext(), ())


def arenas(asked: list[Mapping[str, int]], error: Exception | None = None, graphs: tuple[Any, ...] = ()) -> Any:
    def check_at(sizes: Mapping[str, int], placements: Any) -> DryRun:
        asked.append(sizes)
        if error is not None:
            raise error
        return DryRun(unknown="made up")

    return ArenasBySize(STEP, graphs, check_at, False)


def test_larger_sizes_are_planned_for_with_some_room() -> None:
    asked: list[Mapping[str, int]] = []
    made = arenas(asked)
    made.grow((10, 8), lambda sizes: True)
    assert asked == [{"s0": 13, "s1": 10}]
    made.grow((13, 10), lambda sizes: True)
    assert len(asked) == 1, "within what was planned for"
    # No room: for the largest of each size so far, or else for those of the call alone.
    made.grow((14, 2), lambda sizes: sizes <= (14, 10))
    made.grow((2, 20), lambda sizes: sizes == (2, 20))
    made.grow((90, 90), lambda sizes: False)
    assert asked[1:] == [{"s0": 14, "s1": 10}, {"s0": 2, "s1": 20}]
    assert made.formula_at((1, 1)) is None, "nothing could be placed"


def test_a_defect_of_planning_leaves_the_step_without_arenas(caplog: pytest.LogCaptureFixture) -> None:
    placed = SimpleNamespace(places=SamePlaces(None))  # type: ignore[arg-type]
    made = arenas([], ZeroDivisionError("a defect"), (SimpleNamespace(placed=placed),))
    with caplog.at_level(logging.WARNING):
        made.grow((10, 8), lambda sizes: True)
    assert "planning arenas failed (a defect)" in caplog.text
    assert placed.places is None
    assert made.reach == ()
