"""The dump: one folder per graph, with everything that people or tools need to see what was decided.

DIR/graph0/joint.py  forward.py  backward.py   the graphs as readable Python, as given by the caller
           problem.json  plan.json             the planner's problem, and its answer
           report.json   summary.txt           the report, for tools and for people
           plan.txt      memory.svg            the plan step by step, and the picture of memory
           timeline.perfetto.json              the plan over modelled time, for Perfetto
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from remat_compiler.errors import FormatError, OptionError
from remat_compiler.files import read_bounded, write_whole
from remat_compiler.ir.json_form import dumps
from remat_compiler.ir.plan import PlanResult
from remat_compiler.ir.problem import RematProblem
from remat_compiler.ir.text_form import plan_text
from remat_compiler.log import logger_of
from remat_compiler.report.picture import memory_svg
from remat_compiler.report.plan_report import PlanReport
from remat_compiler.report.summary import summary_text
from remat_compiler.report.timeline_trace import timeline_trace
from remat_compiler.simulate.timeline import simulate

logger = logger_of(__name__)

REPORT_FILE = "report.json"
TIMELINE_FILE = "timeline.perfetto.json"
_NAMED = 10
"""Dumps within a folder that a message names."""


def write_dump(directory: Path, graph_name: str, files: Mapping[str, str]) -> Path | None:
    """Write the dump of one graph to a folder of its name below `directory`; files of that name are replaced.

    A dump never stops a training: a dump that cannot be written is one logged warning.

    Args:
        directory: Folder of all dumps; created if it does not exist.
        graph_name: Name of the graph.
        files: File name and text of each file, see `dump_files`.

    Returns:
        The folder of the graph, or `None` when it cannot be written.
    """
    folder = directory / _folder_name(graph_name)
    try:
        for name, text in files.items():
            # Readable to others, less the user's umask: a dump is there to be shown.
            write_whole(folder / name, text, mode=0o666)
    except OSError as error:
        logger.warning("dump of %s to %s is not written: %s; training goes on", graph_name, folder, error)
        return None
    return folder


def dump_files(
    report: PlanReport,
    problem: RematProblem,
    result: PlanResult,
    sources: Mapping[str, str] | None = None,
    compile_id: str = "",
) -> dict[str, str]:
    """Names and texts of all files of the dump of one graph.

    Args:
        report: The report of `result`.
        problem: The planner's problem.
        result: Its answer, with a valid plan.
        sources: File name, such as ``forward.py``, and text of further files.
        compile_id: Dynamo's name of the compilation, such as ``0/0``; empty if there is none.
    """
    files = {"problem.json": dumps(problem), "plan.json": dumps(result), **report_files(report)}
    if result.plan is not None:
        live = simulate(problem.graph, problem.costs, result.plan).live_bytes.tolist()
        files["plan.txt"] = plan_text(problem.graph, result.plan, live)
        if report.memory is not None:
            files["memory.svg"] = memory_svg(report, report.memory)
        files[TIMELINE_FILE] = timeline_trace(report, problem, result.plan, compile_id)
    # The dump's own files last, so that no source takes one of their names.
    return {**(sources or {}), **files}


def report_files(report: PlanReport) -> dict[str, str]:
    """Names and texts of the files that need no plan, for code that came from a compiler's cache."""
    return {REPORT_FILE: report.to_json(), "summary.txt": summary_text(report)}


def read_reports(directory: Path) -> list[PlanReport]:
    """The reports of a dump, in the order of their graphs.

    Args:
        directory: The folder given as `dump`, or the folder of one graph in it.

    Raises:
        OptionError: There is no such folder, it cannot be read, or it holds no dump.
        FormatError: A report in it cannot be read.
    """
    reports = []
    for file, text in _texts_of_reports(directory):
        try:
            reports.append(PlanReport.from_json(text))
        except FormatError as error:
            raise FormatError(f"{file}: {error.place}", error.problem) from error
    return reports


def _texts_of_reports(directory: Path) -> list[tuple[Path, bytes]]:
    """Path and content of the report of each graph of a dump, in the order of the graphs; errors as `read_reports`."""
    own = directory / REPORT_FILE
    try:
        if not directory.is_dir():
            raise OptionError(f"{directory} is not a folder; give the folder that the option dump or REMAT_DUMP named")
        # A folder of one graph is shown alone; else each folder below holds one graph.
        files = [own] if own.is_file() else sorted(directory.glob(f"*/{REPORT_FILE}"), key=_natural)
        # Read within the block, so that a file that cannot be read is reported like the folder.
        texts = [(file, read_bounded(file)) for file in files]
    except OSError as error:
        raise OptionError(f"{directory} cannot be read: {error}") from error
    if not texts:
        several = sorted({str(file.parent.parent) for file in directory.glob(f"*/*/{REPORT_FILE}")})
        if several:
            raise OptionError(f"{directory} holds {len(several)} dumps; give one: {', '.join(several[:_NAMED])}")
        raise OptionError(f"{directory} holds no dump: expected {REPORT_FILE} in it or in its folders")
    return texts


def _folder_name(graph_name: str) -> str:
    """`graph_name` as a name that is one folder on every system."""
    # Without leading dots the name can neither hide the folder nor lead out of the dump.
    return re.sub(r"[^A-Za-z0-9_.-]", "_", graph_name).lstrip(".") or "graph"


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sort key in which graph2 comes before graph10."""
    # Numbers compare as numbers; -1 puts a text before any of them.
    pieces = re.split(r"(\d+)", path.parent.name)
    return [(int(piece), "") if piece.isdigit() else (-1, piece) for piece in pieces]
