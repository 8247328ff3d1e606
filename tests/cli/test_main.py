"""The command `remat`: what it prints, and that mistakes end with code 2 and a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from planned import problem, report, result
from remat_compiler.cli.main import main
from remat_compiler.report.dump import dump_files, write_dump
from remat_compiler.report.summary import one_line, summary_text
from remat_compiler.version import __version__
from remat_passes.registry import planner_names


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    for name in ("graph0", "graph1"):
        write_dump(tmp_path, name, dump_files(report(graph_name=name), problem(), result()))
    return tmp_path


def test_show_prints_every_graph(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(dump)]) == 0
    expected = "\n".join(summary_text(report(graph_name=name)) for name in ("graph0", "graph1"))
    assert capsys.readouterr().out == expected


def test_show_one_graph_in_one_line(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(dump), "--graph", "graph1", "--short"]) == 0
    assert capsys.readouterr().out == one_line(report(graph_name="graph1")) + "\n"


def test_an_unknown_graph_names_the_near_ones(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(dump), "--graph", "grahp1"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("remat: unknown graph 'grahp1'; did you mean 'graph1'")


def test_a_folder_without_a_dump_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "holds no dump" in captured.err


@pytest.mark.parametrize("arguments", [[], ["shw"], ["show"], ["planners", "x"]])
def test_wrong_use_ends_with_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert "usage: remat" in capsys.readouterr().err


def test_planners_lists_every_registered_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["planners"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(planner_names())
    assert all(len(line.split()) > 1 for line in lines), "a planner without a docstring"


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"remat {__version__}\n"
