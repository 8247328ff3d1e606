"""remat: a torch.compile backend that makes a training step fit the bytes you name.

    model = torch.compile(model, backend="remat", options={"memory_budget": "6GiB"})

Importing this package imports no torch; `remat_compiler.backend` is the entry point that torch.compile finds.
"""

from remat_compiler.capture.declared import allow_recompute, forbid_recompute
from remat_compiler.compiled_module import compile  # noqa: A004 - as torch.compile
from remat_compiler.costs.declared_workspace import declare_workspace
from remat_compiler.errors import (
    CacheError,
    FormatError,
    InfeasibleBudget,
    InvalidGraph,
    OptionError,
    PaperFailure,
    PlanRejected,
    RematError,
    UnknownName,
    UnsupportedTorch,
)
from remat_compiler.fitting.fit import fit
from remat_compiler.fitting.max_batch import max_batch
from remat_compiler.fitting.pareto import pareto
from remat_compiler.gradients.step_in_backward import step_in_backward
from remat_compiler.options import Options
from remat_compiler.report.out_of_memory import explain_oom
from remat_compiler.report.plan_report import PlanReport
from remat_compiler.report.store import clear_reports, reports
from remat_compiler.stats import Stats, reset_stats, stats

__all__ = [
    "CacheError",
    "FormatError",
    "InfeasibleBudget",
    "InvalidGraph",
    "OptionError",
    "Options",
    "PaperFailure",
    "PlanRejected",
    "PlanReport",
    "RematError",
    "Stats",
    "UnknownName",
    "UnsupportedTorch",
    "allow_recompute",
    "clear_reports",
    "compile",
    "declare_workspace",
    "explain_oom",
    "fit",
    "forbid_recompute",
    "max_batch",
    "pareto",
    "reports",
    "reset_stats",
    "stats",
    "step_in_backward",
]
