"""The options of the backend as a type, so that editors complete their names and type checkers know their values."""

from __future__ import annotations

import os
from typing import Literal, TypedDict


class Options(TypedDict, total=False):
    """What ``torch.compile(model, backend="remat", options=...)`` takes; `RematOptions` has the meaning of each.

        options: remat_compiler.Options = {"memory_budget": "6GiB", "inner": "eager"}

    It is a plain dictionary as the program runs.  Settings of Inductor, which may stand among the options, are no part
    of the type.
    """

    memory_budget: int | float | str
    planner: str
    inner: Literal["inductor", "eager"]
    cost_model: Literal["roofline", "measured", "nominal"]
    dump: str | os.PathLike[str] | None
    on_infeasible: Literal["error", "min"]
    max_slowdown: float | None
    time_limit: float | None
    max_variants: int
    estimator: Literal["symbolic", "quadratic"]
    budget_of: Literal["allocated", "reserved"]
    layout: Literal["plain", "planned"]
    inplace_buffers: bool
    chunks: int | Literal["auto", "never"]
    offload_budget: int | str
    offload_tier: Literal["auto", "host", "disk"]
    offload_dir: str | os.PathLike[str] | None
    offload_direct: bool
