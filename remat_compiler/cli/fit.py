"""`remat fit FILE.py:FUNCTION --device h100`: does a training step fit a GPU that need not be there, or this CPU?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from remat_compiler.cli.step_arguments import (
    ABOUT_FUNCTION,
    add_budget_argument,
    add_step_arguments,
    batches_of,
    request_of,
)
from remat_compiler.errors import OptionError
from remat_compiler.files import write_whole
from remat_compiler.fitting.fit import answer
from remat_compiler.fitting.max_batch import largest_batch
from remat_compiler.fitting.validate import validated


def add_fit_command(commands: Any) -> None:
    """Add `fit` to the parser's subcommands."""
    parser = commands.add_parser(
        "fit",
        help="whether a training step fits a GPU, which need not be there, or this CPU",
        description=ABOUT_FUNCTION,
    )
    add_step_arguments(parser)
    add_budget_argument(parser)
    batch = parser.add_mutually_exclusive_group()
    batch.add_argument("--batch", metavar="N,N,...", help="what FUNCTION is called with, one step for each")
    batch.add_argument("--max-batch", action="store_true", help="the largest N that fits, be it a batch or a length")
    parser.add_argument(
        "--validate",
        metavar="FILE",
        nargs="?",
        const="remat-validation.json",
        help="hold paper against the GPU that is here, and write all figures to FILE (%(const)s)",
    )
    parser.set_defaults(command=_fit)


def _fit(options: argparse.Namespace) -> str:
    """The text of `remat fit`."""
    if options.validate:
        return _validate(options)
    if options.max_batch:
        report: Any = largest_batch(request_of(options, (), options.budget))
    else:
        report = answer(request_of(options, batches_of(options.batch), options.budget))
    return f"{report.to_json()}\n" if options.json else str(report)


def _validate(options: argparse.Namespace) -> str:
    """The text of `remat fit --validate`, whose figures are written to a file, too."""
    batches = batches_of(options.batch)
    if options.max_batch or len(batches) > 1:
        raise OptionError("--validate takes one step: name a --batch, or none, and no --max-batch")
    found = validated(request_of(options, batches, options.budget), options.function)
    path = Path(options.validate)
    try:
        write_whole(path, found.to_json(), 0o644)
        where = f"all figures are in {path}\n"
    # The figures took minutes: they are not lost to a folder that cannot be written.
    except OSError as error:
        return f"{found}{path} cannot be written ({error}); all figures:\n{found.to_json()}\n"
    return f"{found.to_json()}\n" if options.json else f"{found}{where}"
