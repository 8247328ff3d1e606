"""The command `remat cache`: what it lists, explains and removes, and that mistakes end with code 2 and a sentence."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from remat_compiler.cli.main import main
from remat_compiler.plan_cache.cache import PlanCache
from remat_compiler.plan_cache.cached_planner import CachedPlanner
from remat_passes.planning.auto import Auto
from scaled import step


def planner_at(directory: Path) -> CachedPlanner:
    """A quick planner with the cache in `directory`."""
    quick, cache = Auto(effort=500, time_limit=0.0), PlanCache(directory)
    return CachedPlanner(quick, cache, max_slowdown=2.0, costs="rates", parameters="", similar=True)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of two plans, for one budget and for another."""
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("REMAT_PLANNER", raising=False)
    planner = planner_at(tmp_path)
    problem = step(100, blocks=20)
    for asked in (problem, step(99, blocks=20), replace(problem, budget_bytes=problem.budget_bytes + 4096)):
        planner.plan(asked)
    # Ages stay as they are however long the test takes.
    now = time.time() + 5
    monkeypatch.setattr(time, "time", lambda: now)
    return tmp_path


def out(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """Lines that `remat cache` prints."""
    capsys.readouterr()
    assert main(["cache", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def test_every_plan_is_a_line_with_its_figures(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = out(capsys)
    for arguments in (["list"], ["--dir", str(folder)], ["list", "--dir", str(folder)]):
        assert out(capsys, *arguments) == lines
    head = "graph parameters activations budget planner status peak added solved file age"
    assert lines[0].split() == head.split(" ")
    assert len(lines) == 5
    assert sum("for another size" in line for line in lines) == 1
    assert all("auto" in line and "feasible" in line and " s" in line for line in lines[1:4])
    assert lines[-1].startswith("3 plans, ")
    assert lines[-1].endswith(f" KiB in {folder / 'plan-cache'}")


def test_the_one_used_last_comes_first_and_unreadable_ones_are_counted(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = sorted((folder / "plan-cache").iterdir())
    for number, path in enumerate(paths):
        os.utime(path, (1000 + number, 1000 + number))
    lines = out(capsys)
    os.utime(paths[0], (2000, 2000))
    moved = out(capsys)
    assert [moved[1], *moved[2:4]] == [lines[3], *lines[1:3]]
    paths[0].write_text("{")
    broken = out(capsys)
    assert len(broken) == 4
    assert broken[-1].startswith("3 plans, 1 of them unreadable, ")


def test_misses_are_explained_the_latest_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = out(capsys, "explain")
    assert [line[0] != " " for line in lines if line] == [True, False, False, True, False]
    assert lines[1].startswith("  nearest: ")
    budget = step(100, blocks=20).budget_bytes
    assert lines[2].split() == ["budget_bytes", "asked", str(budget + 4096), "known", str(budget)]
    assert lines[-1] == "  nothing was cached before, or it is gone"


def test_a_refused_candidate_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planner_at(folder).plan(step(112, blocks=20))
    lines = out(capsys, "explain")
    assert lines[1].startswith("  refused: the plan for activations of 2.1 MiB: step ")
    assert "the peak exceeds the budget" in lines[1]


def test_clear_removes_plans_and_misses_and_nothing_else(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "rates-1.json").write_text("{}")
    (folder / "plan-cache" / "README").write_text("mine")
    assert out(capsys, "clear") == [f"removed 3 plans from {folder / 'plan-cache'}"]
    left = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    assert left == ["plan-cache/README", "rates-1.json"]
    assert out(capsys, "clear") == [f"removed 0 plans from {folder / 'plan-cache'}"]
    assert out(capsys) == [f"no plans are cached in {folder / 'plan-cache'}"]
    assert out(capsys, "explain") == [f"no misses are noted in {folder}"]


def test_a_cache_that_was_never_written_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "never"))
    assert out(capsys) == [f"no plans are cached in {tmp_path / 'never' / 'plan-cache'}"]
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize("command", [[], ["list"], ["explain"], ["clear"]])
def test_a_folder_that_is_none_is_an_error(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    for name in ("nowhere", "file"):
        assert main(["cache", *command, "--dir", str(tmp_path / name)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith(f"remat: {tmp_path / name} is no folder; give the folder")


def test_plans_that_cannot_be_listed_or_removed_are_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", denied)
        assert main(["cache", "clear"]) == 2
        assert "cannot be removed" in capsys.readouterr().err
    monkeypatch.setattr(os, "scandir", denied)
    assert main(["cache"]) == 2
    assert "cannot be listed" in capsys.readouterr().err


def test_an_unknown_command_ends_with_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["cache", "clera"])
    assert end.value.code == 2
    assert "usage: remat cache" in capsys.readouterr().err
