"""The pages of `benchmarks/`: short, with the revision that each table was measured at, and with nothing that is gone.

Also what may import what there: programs and studies import instruments, and no study another one.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from front_page import ROOT

BENCHMARKS = ROOT / "benchmarks"
STUDIES = BENCHMARKS / "studies"
RESULTS = BENCHMARKS / "RESULTS.md"
NAMES = sorted(path.name for path in STUDIES.iterdir() if path.is_dir() and path.name != "__pycache__")
PAGES = [RESULTS, *sorted(STUDIES.rglob("*.md")), BENCHMARKS / "gpu" / "README.md"]
PROGRAMS = sorted(path for path in BENCHMARKS.rglob("*.py") if "__pycache__" not in path.parts)
REVISION = r"`([0-9a-f]{7})`"
STATE = re.compile(rf"^\| .+ \| (?:\*\*outdated, )?measured at ({REVISION}(?:, {REVISION})*)(?:\*\*)?(?:; .+)? \|$")
"""A row that says at which revisions a table of its page was measured."""


def name_of(path: Path) -> str:
    return str(path.relative_to(BENCHMARKS))


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def states(page: Path) -> list[str]:
    """The rows of the table in which a page of a study says when its tables were measured."""
    found = re.search(r"\n\| table \| state \|\n\|---\|---\|\n((?:\|.*\n)+)", text_of(page))
    assert found, f"{name_of(page)} has no table of states"
    return found[1].splitlines()


def revisions(row: str, page: Path) -> list[str]:
    """The revisions that a row of `states` names before anything else."""
    found = STATE.match(row)
    assert found, f"{name_of(page)}: {row}"
    return re.findall(REVISION, found[1])


def test_results_are_one_page_with_all_studies() -> None:
    text = text_of(RESULTS)
    assert len(text.splitlines()) <= 150
    assert sorted(set(re.findall(r"\(studies/(\w+)/README\.md\)", text))) == NAMES


@pytest.mark.parametrize("study", NAMES)
def test_pages_of_a_study_are_short_and_say_when_it_was_measured(study: str) -> None:
    pages = sorted((STUDIES / study).glob("*.md"))
    assert STUDIES / study / "README.md" in pages
    for page in pages:
        assert len(text_of(page).splitlines()) <= 200, name_of(page)
        assert all(revisions(row, page) for row in states(page))


def test_the_revisions_are_of_this_repository() -> None:
    named = {revision for page in PAGES for revision in re.findall(REVISION, text_of(page))}
    assert named
    command = ["git", "-C", str(ROOT), "rev-parse", "--is-shallow-repository", "--show-toplevel"]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    if asked.stdout.split("\n")[:2] != ["false", str(ROOT)]:
        pytest.skip("no repository, or not the whole history")
    lines = "".join(f"{revision}^{{commit}}\n" for revision in sorted(named))
    told = subprocess.run(
        ["git", "-C", str(ROOT), "cat-file", "--batch-check"], input=lines, capture_output=True, text=True, check=True
    ).stdout
    assert [line for line in told.splitlines() if " commit " not in line] == []


def test_the_page_says_of_a_figure_what_its_study_says() -> None:
    """What a study marks as outdated is so in `RESULTS.md`, and nothing else is."""
    rows = [(row, page) for page in STUDIES.rglob("README.md") for row in states(page)]
    outdated = {one for row, page in rows if "**outdated" in row for one in revisions(row, page)}
    current = {one for row, page in rows if "**outdated" not in row for one in revisions(row, page)}
    told = re.findall(rf"(outdated, )?{REVISION}", text_of(RESULTS))
    assert {one for mark, one in told if mark} <= outdated
    assert {one for mark, one in told if not mark} <= current


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_and_commands_lead_somewhere(page: Path) -> None:
    text = text_of(page)
    for target in re.findall(r"\]\(([^)\s#]+)", text):
        assert target.startswith("http") or (page.parent / target).exists(), target
    for module in re.findall(r"python -m ((?:studies|instruments)[\w.]+)", text):
        assert (BENCHMARKS / module.replace(".", "/")).with_suffix(".py").is_file(), module
    for program in re.findall(r"python (benchmarks/[\w/]+\.py)", text):
        assert (ROOT / program).is_file(), program


@pytest.mark.parametrize("path", [path for path in PROGRAMS if STUDIES in path.parents], ids=name_of)
def test_programs_of_a_study_are_on_its_page(path: Path) -> None:
    if path.parent != STUDIES:
        assert f"`{path.name}`" in text_of(path.parent / "README.md")


def imported(path: Path) -> Iterator[str]:
    """Names of the modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(text_of(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            assert node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", PROGRAMS, ids=name_of)
def test_programs_share_instruments_and_nothing_else(path: Path) -> None:
    room, *below = path.relative_to(BENCHMARKS).parts
    own = f"studies.{below[0]}." if room == "studies" and len(below) > 1 else None
    programs = {program.stem for program in BENCHMARKS.glob("*.py")}
    for module in imported(path):
        first = module.split(".")[0]
        assert first not in programs, module
        assert first != "studies" or (own is not None and module.startswith(own)), module
        assert first != "gpu" or room == "gpu", module
