"""What the programs share that `test_ranks` and its neighbours run as processes of one job.

    python PROGRAM RANK SIZE FOLDER [mode]

Each rank writes what it came to into a file of the folder.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

import remat_compiler
from remat_compiler.compilation import lateness
from remat_compiler.observer import Observer, observed_by
from remat_compiler.partition import stages

RANK, SIZE, FOLDER = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
MODE = sys.argv[4:]
OPTIONS: dict[str, Any] = {"memory_budget": 0.6, "inner": "eager", "max_slowdown": None, "cost_model": "nominal"}
TIMEOUT_S = 60
"""Seconds after which a collective that a rank does not take part in is an error in the others."""


class Plans(Observer):
    """Digests of the plans that were made, and the names of operators that graphs execute again."""

    def __init__(self) -> None:
        self.digests: list[str] = []
        self.repeated: list[list[str]] = []

    def partition_made(self, partition: Any, request: Any, **convention: Any) -> None:
        plan, graph = partition.result.plan, partition.graphs.problem.graph
        self.digests.append(hashlib.sha256(repr(plan).encode()).hexdigest())
        again = sorted({graph.ops[i].target for i in plan.steps if plan.steps.count(i) > 1})
        self.repeated.append(again)


@contextmanager
def own_times() -> Iterator[None]:
    """Operators take other times on each rank."""
    measured = stages.cost_table

    def other(captured: Any, *given: Any) -> Any:
        costs = measured(captured, *given)
        draw = Random(RANK)
        return replace(costs, time_ns=tuple(1_000 * draw.randint(1, 40) for _ in costs.time_ns))

    with patch.object(stages, "cost_table", other):
        yield


def difference(found: list[Tensor | None], expected: list[Tensor | None]) -> float:
    """The largest difference of an element; a gradient that is `None` counts as zeros."""
    zero = torch.zeros(1)
    pairs = [(zero if a is None else a, zero if b is None else b) for a, b in zip(found, expected, strict=True)]
    return max(float((a - b).abs().max()) for a, b in pairs)


def told(train: Callable[[], Any]) -> dict[str, Any]:
    """What `train` returns, with plans and peaks of what it trained."""
    torch._dynamo.reset()
    remat_compiler.clear_reports()
    plans = Plans()
    with own_times(), observed_by(plans):
        error = train()
    made = remat_compiler.reports()
    reports = [(one.peak_bytes, one.budget_bytes, one.added_ns) for one in made]
    steps = [None if one.step is None else (one.step.graphs, one.step.peak_bytes, one.step.limit_bytes) for one in made]
    return {"error": error, "plans": plans.digests, "repeated": plans.repeated, "reports": reports, "steps": steps}


def begin() -> None:
    """Join the job; the folder of caches is the rank's own."""
    os.environ["REMAT_CACHE_DIR"] = str(FOLDER / f"cache{RANK}")
    torch.set_num_threads(1)
    # How long a compilation takes says how busy the machine is.
    lateness.PART = math.inf
    store = f"file://{FOLDER / 'store'}"
    dist.init_process_group("gloo", store, timedelta(seconds=TIMEOUT_S), rank=RANK, world_size=SIZE)


def tell(found: Any) -> None:
    """Leave the rank's result in the folder."""
    (FOLDER / f"rank{RANK}.json").write_text(json.dumps(found), encoding="utf-8")


def run_all(cases: Mapping[str, Callable[[], Any]]) -> None:
    """Run each case, or those that are named, and tell what came of it."""
    begin()
    tell({name: told(case) for name, case in cases.items() if not MODE or name in MODE})
    # A process that ends earlier would cut off the others; one that crashed, as some cases want, is not waited for.
    with suppress(RuntimeError):
        dist.barrier()
    dist.destroy_process_group()
