"""`remat plan FILE.py:FUNCTION --device h100 --budget 20GiB`: what is kept, recomputed or moved, and why."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from remat_compiler.cli.step_arguments import (
    ABOUT_FUNCTION,
    add_budget_argument,
    add_one_batch_argument,
    add_step_arguments,
    request_of,
)
from remat_compiler.fitting.planned import plans
from remat_compiler.report.summary import summary_text


def add_plan_command(commands: Any) -> None:
    """Add `plan` to the parser's subcommands."""
    parser = commands.add_parser(
        "plan",
        help="what becomes of each activation of a training step, which is not run",
        description=ABOUT_FUNCTION,
    )
    add_step_arguments(parser)
    add_budget_argument(parser)
    add_one_batch_argument(parser)
    parser.add_argument("--dump", metavar="DIR", type=Path, help="where graphs, plans and pictures go")
    parser.set_defaults(command=_plan)


def _plan(options: argparse.Namespace) -> str:
    """The text of `remat plan`."""
    more = {} if options.dump is None else {"dump": str(options.dump.absolute())}
    batches = () if options.batch is None else (options.batch,)
    reports = plans(request_of(options, batches, options.budget, **more))
    if options.json:
        return json.dumps([json.loads(report.to_json()) for report in reports], indent=1) + "\n"
    return "\n".join(summary_text(report) for report in reports)
