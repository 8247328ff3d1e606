"""`remat fit FILE.py:FUNCTION --device h100`: does a training step fit a GPU that need not be there?"""

from __future__ import annotations

import argparse
from typing import Any

from remat_compiler.cli.step_arguments import (
    ABOUT_FUNCTION,
    add_budget_argument,
    add_step_arguments,
    batches_of,
    budget_of,
    request_of,
)
from remat_compiler.fitting.fit import answer
from remat_compiler.fitting.max_batch import largest_batch


def add_fit_command(commands: Any) -> None:
    """Add `fit` to the parser's subcommands."""
    parser = commands.add_parser(
        "fit", help="whether a training step fits a GPU, which need not be there", description=ABOUT_FUNCTION
    )
    add_step_arguments(parser)
    add_budget_argument(parser)
    batch = parser.add_mutually_exclusive_group()
    batch.add_argument("--batch", metavar="N,N,...", help="what FUNCTION is called with, one step for each")
    batch.add_argument("--max-batch", action="store_true", help="the largest N that fits, be it a batch or a length")
    parser.set_defaults(command=_fit)


def _fit(options: argparse.Namespace) -> str:
    """The text of `remat fit`."""
    budget = budget_of(options.budget)
    if options.max_batch:
        report: Any = largest_batch(request_of(options, (), budget))
    else:
        report = answer(request_of(options, batches_of(options.batch), budget))
    return f"{report.to_json()}\n" if options.json else str(report)
