"""Plans that are made quickly, where what is trained is looked at and not how good its plan is.

Here, and in processes that tests fork: an environment variable tells them, see `forked.take`.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from remat_passes.bounds.lower_bound import QUICK, with_bound
from remat_passes.planning.auto import Auto

BRIEFLY = "TESTS_PLAN_BRIEFLY"


def search_briefly(patch: pytest.MonkeyPatch) -> None:
    """Have the planner that users get search a tenth as long, and then no further."""
    effort, _, *others = Auto.__init__.__defaults__ or ()
    patch.setattr(Auto.__init__, "__defaults__", (effort // 10, 0.0, *others))


def plan_briefly(patch: pytest.MonkeyPatch) -> None:
    """Search and bound briefly, try losses in 4 chunks alone and layers in none, and have other processes do so."""
    search_briefly(patch)
    patch.setattr(with_bound, "__defaults__", (replace(QUICK, linked=0, closed=0.0),))
    patch.setattr("remat_compiler.partition.in_chunks.COUNTS", (4,))
    patch.setattr("remat_compiler.partition.in_chunks.LAYERS", ())
    patch.setattr("remat_compiler.step_budget.graph_levels.LEVEL_EFFORT", 200)
    patch.setenv("REMAT_TIME_LIMIT", "0")
    patch.setenv(BRIEFLY, "1")


def as_told() -> None:
    """Plan briefly to the end of this process, if its environment says so."""
    if BRIEFLY in os.environ:
        plan_briefly(pytest.MonkeyPatch())
