"""`remat show DIR` prints the reports of a dump, `remat planners` lists the planners, `remat cache` the cached plans;
`remat doctor` prints what it found on this machine; `remat fit` says whether a training step fits a GPU, `remat pareto`
what each budget costs there, and `remat plan` what becomes of each activation.

Exit codes: 0 done, 1 the doctor found something missing, 2 wrong use or unreadable input; the message says what to do.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from remat_compiler.cli.cache import add_cache_commands
from remat_compiler.cli.doctor import Findings, add_doctor_command
from remat_compiler.cli.fit import add_fit_command
from remat_compiler.cli.pareto import add_pareto_command
from remat_compiler.cli.plan import add_plan_command
from remat_compiler.errors import RematError, UnknownName
from remat_compiler.ir.text_form import table
from remat_compiler.progress import progress_on_stderr
from remat_compiler.report.dump import read_reports
from remat_compiler.report.summary import one_line, summary_text
from remat_compiler.version import __version__
from remat_passes.registry import planner_class, planner_names


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with `arguments` (default: of the process); the exit code."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], str | Findings] = options.command
    code = 0
    try:
        with progress_on_stderr():
            told = command(options)
        text, code = (told.text, told.exit_code) if isinstance(told, Findings) else (told, 0)
        sys.stdout.write(text)
        # Within the block, so that a closed pipe shows here and not at exit.
        sys.stdout.flush()
    except RematError as error:
        # Errors of this project say what to do; a traceback would hide it.
        print(f"remat: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader (a pager, head) has seen enough.  Nothing may be written to the closed pipe at exit.
        sys.stdout = None
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="remat", description="See what the torch.compile backend remat decided.")
    parser.add_argument("--version", action="version", version=f"remat {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    show = commands.add_parser("show", help="print the reports of a dump folder")
    show.add_argument("directory", type=Path, metavar="DIR", help="folder given as dump or REMAT_DUMP")
    show.add_argument("--graph", metavar="NAME", help="only this graph")
    show.add_argument("--short", action="store_true", help="one line a graph")
    show.set_defaults(command=_show)
    planners = commands.add_parser("planners", help="list the registered planners")
    planners.set_defaults(command=_planners)
    add_cache_commands(commands)
    add_doctor_command(commands)
    add_fit_command(commands)
    add_pareto_command(commands)
    add_plan_command(commands)
    return parser


def _show(options: argparse.Namespace) -> str:
    """The text of `remat show`."""
    reports = read_reports(options.directory)
    if options.graph is not None:
        names = [report.graph_name for report in reports]
        if options.graph not in names:
            raise UnknownName("graph", options.graph, names)
        reports = [report for report in reports if report.graph_name == options.graph]
    if options.short:
        return "".join(f"{one_line(report)}\n" for report in reports)
    return "\n".join(summary_text(report) for report in reports)


def _planners(options: argparse.Namespace) -> str:
    """The text of `remat planners`: name and first line of the documentation of each."""
    rows = []
    for name in planner_names():
        documentation = (planner_class(name).__doc__ or "").strip().splitlines()
        rows.append((name, documentation[0] if documentation else ""))
    return "".join(f"{line}\n" for line in table(rows))
