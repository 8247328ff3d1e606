"""`remat doctor`: what it names, and that its exit code says whether something is missing that must not be."""

from __future__ import annotations

import dataclasses
import platform
import shutil
from pathlib import Path

import pytest
import torch

from remat_compiler import torch_compat
from remat_compiler.cli.main import main
from remat_compiler.torch_compat import PATCHES, Patch, Purpose
from remat_compiler.version import __version__


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("REMAT_CACHE_DIR", str(folder))
    return folder


def doctor(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, list[str]]]:
    """Exit code, and the lines of each section by its title."""
    code = main(["doctor"])
    captured = capsys.readouterr()
    assert captured.err == ""
    sections = (section.splitlines() for section in captured.out.split("\n\n"))
    return code, {title: [line.strip() for line in lines] for title, *lines in sections}


def line(lines: list[str], start: str) -> str:
    """The line that begins with `start`."""
    (found,) = (one for one in lines if one.startswith(f"{start} "))
    return " ".join(found.split())


def test_here_nothing_is_missing(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, sections = doctor(capsys)
    assert code == 0
    assert sections["Missing"] == ["nothing"]
    versions = sections["Versions"]
    assert line(versions, "remat") == f"remat {__version__}"
    assert line(versions, "Python").startswith(f"Python {platform.python_version()} ")
    assert line(versions, "torch") == f"torch {torch.__version__.partition('+')[0]} (tested: 2.11 to 2.15)" or (
        line(versions, "torch") == f"torch {torch.__version__} (tested: 2.11 to 2.15)"
    )
    assert line(sections["Solvers"], "CBC").endswith("cbc")
    assert f"{torch.get_num_threads()} threads" in line(sections["Devices"], "cpu")


def test_every_row_of_the_table_is_printed(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, sections = doctor(capsys)
    rows = sections["Changes of torch"]
    assert len(rows) == len(PATCHES)
    for patch, row in zip(PATCHES, rows):
        state = "found" if patch.needed else "not needed"
        assert " ".join(row.split()) == f"{patch.name} {patch.purpose.value} {state} {patch.target}"


def test_without_a_cache_folder_it_is_said_how_to_name_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("REMAT_CACHE_DIR", raising=False)
    monkeypatch.setenv("REMAT_DISABLE_CACHE", "1")
    code, sections = doctor(capsys)
    assert code == 0
    assert "REMAT_CACHE_DIR" in sections["Cache"][0]


@pytest.mark.parametrize("purpose", list(Purpose))
def test_only_what_correctness_needs_changes_the_exit_code(
    purpose: Purpose, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = Patch("doubling", "torch.nowhere:double", purpose, "doubles", "nothing is doubled")
    monkeypatch.setattr(torch_compat, "PATCHES", (*PATCHES, broken))
    code, sections = doctor(capsys)
    row = line(sections["Changes of torch"], "doubling")
    assert "torch.nowhere.double is missing, so nothing is doubled" in row
    assert code == (1 if purpose is Purpose.CORRECTNESS else 0)
    assert (sections["Missing"] == ["nothing"]) is (code == 0)
    assert ("doubling" in sections["Missing"][0]) is (code == 1)


def test_a_row_that_torch_needs_no_more_is_not_missed(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = dataclasses.replace(PATCHES[0], target="torch.nowhere:thing", before=(2, 0))
    monkeypatch.setattr(torch_compat, "PATCHES", (gone,))
    code, sections = doctor(capsys)
    assert code == 0
    assert "not needed" in sections["Changes of torch"][0]


def test_the_cache_folder_is_told(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, sections = doctor(capsys)
    assert sections["Cache"] == [f"{cache} is not there yet"]
    (cache / "plans").mkdir(parents=True)
    (cache / "plans" / "a.json").write_bytes(b"x" * 2048)
    _, sections = doctor(capsys)
    assert sections["Cache"] == [f"{cache} can be written; 1 files, 2.0 KiB"]
    shutil.rmtree(cache)
    cache.write_text("")
    _, sections = doctor(capsys)
    assert sections["Cache"] == [f"{cache} is no folder: name another one by REMAT_CACHE_DIR"]


def test_the_compiler_is_named_or_missed(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for found, said in (("/opt/bin/c++", "C++ compiler /opt/bin/c++"), (None, "no C++ compiler: install one")):
        monkeypatch.setattr(torch_compat, "cpp_compiler", lambda found=found: found)
        _, sections = doctor(capsys)
        assert said in sections["Inner compilers"][0]


def test_the_compiler_that_is_named_is_a_program() -> None:
    compiler = torch_compat.cpp_compiler()
    assert compiler is None or Path(compiler).is_file()
