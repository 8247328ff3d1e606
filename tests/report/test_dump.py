"""The dump folder: what is in it, that it can be read back, and that it never stops a training."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from planned import problem, report, result
from remat_compiler.errors import FormatError, OptionError
from remat_compiler.ir.json_form import loads
from remat_compiler.ir.plan import PlanResult, PlanStatus
from remat_compiler.ir.problem import RematProblem
from remat_compiler.report.dump import dump_files, read_reports, write_dump
from remat_compiler.report.summary import summary_text

SOURCES = {"forward.py": "# forward\n"}


def write(directory: Path, name: str = "graph0") -> Path | None:
    return write_dump(directory, name, dump_files(report(graph_name=name), problem(), result(), SOURCES))


def test_everything_is_there_and_reads_back(tmp_path: Path) -> None:
    folder = write(tmp_path / "new" / "dump")
    assert folder == tmp_path / "new" / "dump" / "graph0"
    assert {file.name for file in folder.iterdir()} == {
        "forward.py",
        "memory.svg",
        "plan.json",
        "plan.txt",
        "problem.json",
        "report.json",
        "summary.txt",
        "timeline.perfetto.json",
    }
    assert loads(RematProblem, (folder / "problem.json").read_bytes()) == problem()
    assert loads(PlanResult, (folder / "plan.json").read_bytes()) == result()
    assert (folder / "summary.txt").read_text(encoding="utf-8") == summary_text(report())
    assert (folder / "forward.py").read_text(encoding="utf-8") == "# forward\n"
    assert (folder / "plan.txt").read_text(encoding="utf-8").count("again") == 2


def test_reports_come_in_the_order_of_their_graphs(tmp_path: Path) -> None:
    for name in ("graph10", "graph2", "graph0"):
        write(tmp_path, name)
    assert [made.graph_name for made in read_reports(tmp_path)] == ["graph0", "graph2", "graph10"]
    assert read_reports(tmp_path / "graph2") == [report(graph_name="graph2")]


def test_a_folder_that_cannot_be_written_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with caplog.at_level(logging.WARNING):
        assert write(blocked) is None
    assert len(caplog.records) == 1
    assert "is not written" in caplog.text
    assert "training goes on" in caplog.text


@pytest.mark.parametrize(("name", "folder"), [("../up", "_up"), ("a/b c", "a_b_c"), ("..", "graph")])
def test_a_graph_name_stays_below_the_folder(tmp_path: Path, name: str, folder: str) -> None:
    assert write(tmp_path, name) == tmp_path / folder


def test_a_result_without_a_plan_leaves_out_what_needs_one(tmp_path: Path) -> None:
    nothing = PlanResult(PlanStatus.INFEASIBLE, "auto", None)
    files = dump_files(replace(report(), status=PlanStatus.INFEASIBLE), problem(), nothing)
    assert set(files) == {"problem.json", "plan.json", "report.json", "summary.txt"}


def test_no_source_takes_the_name_of_another_file() -> None:
    files = dump_files(report(), problem(), result(), {"plan.txt": "mine"})
    assert files["plan.txt"] != "mine"


def test_what_is_no_dump_is_told(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="is not a folder"):
        read_reports(tmp_path / "nowhere")
    with pytest.raises(OptionError, match="holds no dump"):
        read_reports(tmp_path)
    for run in ("first", "second"):
        write(tmp_path / "runs" / run)
    with pytest.raises(OptionError, match=r"holds 2 dumps; give one: .*/runs/first, .*/runs/second"):
        read_reports(tmp_path / "runs")
    folder = write(tmp_path)
    assert folder is not None
    (folder / "report.json").write_text("{}")
    with pytest.raises(FormatError, match=r"report\.json: \$: expected an object"):
        read_reports(tmp_path)
