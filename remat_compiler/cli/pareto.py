"""`remat pareto FILE.py:FUNCTION --device h100`: what each budget costs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from remat_compiler.cli.step_arguments import (
    ABOUT_FUNCTION,
    add_one_batch_argument,
    add_step_arguments,
    request_of,
)
from remat_compiler.errors import OptionError
from remat_compiler.fitting.pareto import DEFAULT_POINTS, curve_of


def add_pareto_command(commands: Any) -> None:
    """Add `pareto` to the parser's subcommands."""
    parser = commands.add_parser(
        "pareto",
        help="the time of a training step by its peak, on a GPU that need not be there",
        description=ABOUT_FUNCTION,
    )
    add_step_arguments(parser)
    add_one_batch_argument(parser)
    parser.add_argument("--points", metavar="N", type=int, default=DEFAULT_POINTS, help="how many budgets")
    parser.add_argument("--svg", metavar="FILE", type=Path, help="where a picture of it goes")
    parser.set_defaults(command=_pareto)


def _pareto(options: argparse.Namespace) -> str:
    """The text of `remat pareto`."""
    # Before the minutes that the answer takes.
    if options.svg is not None and not options.svg.absolute().parent.is_dir():
        raise OptionError(f"got --svg {options.svg}, and there is no folder {options.svg.absolute().parent}")
    curve = curve_of(request_of(options, () if options.batch is None else (options.batch,)), options.points)
    if options.svg is not None:
        try:
            options.svg.write_text(curve.to_svg(), encoding="utf-8")
        except OSError as error:
            raise OptionError(f"got --svg {options.svg}, which cannot be written ({error})") from error
    return f"{curve.to_json()}\n" if options.json else str(curve)
