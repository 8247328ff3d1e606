"""README.md and the documentation: their figures are those of the result files, their links lead somewhere."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

import front_picture
from front_page import DOCS, PAGES, README, ROOT, demo_table, first_sentence, fit_answer, results
from remat_compiler.options import variable_of
from remat_passes.registry import planner_names

MIB = 2**20
TEXTS = (README, *PAGES)
SOURCES = tuple(path for folder in ("remat_compiler", "passes") for path in sorted((ROOT / folder).rglob("*.py")))


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def h100_row(run: int, case: str) -> Any:
    rows = [row for row in results("gpu_h100.json")["rows"] if row["run"] == run and row["case"] == case]
    (row,) = (row for row in rows if row["job"].startswith("rivals-"))
    return row


def on_h100(case: str, times: str) -> str:
    """Peak and time of one way to train ViT-B."""
    peak, ms = h100_row(3, case)["measured"] / MIB, h100_row(3, "vit times")[times][0]
    return f"{peak:,.0f} MiB and {{}}{ms:.1f} ms"


def test_the_readme_is_one_page() -> None:
    assert len(text_of(README).splitlines()) <= 150


def test_the_first_sentence_has_measured_figures() -> None:
    told = first_sentence()
    assert on_h100("vit stock", "stock").format("takes ") in told
    assert on_h100("vit remat at checkpointed", "remat at checkpointed").format("") in told
    assert on_h100("vit checkpointed", "checkpointed").format("") in told
    assert len(re.findall(r"[0-9][0-9,.]* (?:MiB|ms)", told)) == 6


def test_times_beside_rivals_are_told_with_their_figures() -> None:
    times = h100_row(5, "gpt2-12 times")
    told = " ".join(text_of(README).split())
    knob, checkpointed = (times[f"remat at {way}"][0] / times[way][0] for way in ("knob", "checkpointed"))
    assert f"took {knob:.2f} times as long as with PyTorch's knob" in told
    assert f"{checkpointed:.2f} times as long as with checkpointed blocks" in told


def test_the_large_model_took_what_is_told() -> None:
    (row,) = (row for row in results("gpu_h100.json")["rows"] if row["job"] == "large-32")
    assert row["measured"] == row["predicted"] <= row["budget"]
    assert f"took {row['whole_peak'] / 2**30:.1f} GiB there" in " ".join(text_of(README).split())


def test_the_demo_table_is_what_the_demo_wrote() -> None:
    assert demo_table() in text_of(README)
    rows = results("demo.json")["rows"]
    assert all(row["kept"] and row["same_loss"] for row in rows if row["compiler"] == "remat")
    # No other rows, such as of an earlier run.
    assert text_of(README).count("\n| budget ") == sum(row["name"].startswith("budget ") for row in rows)


@pytest.mark.parametrize("path", [README, DOCS / "fit.md"], ids=lambda path: path.name)
def test_the_answer_of_fit_is_what_fit_wrote(path: Path) -> None:
    assert f"```\n{fit_answer()}\n```" in text_of(path)


def test_the_picture_is_drawn_from_the_rows() -> None:
    curves = front_picture.points(results("pareto.json"))
    for theme, colors in front_picture.THEMES.items():
        drawn = front_picture.picture(curves, colors)
        assert drawn == text_of(DOCS / "_static" / f"peak_against_time_{theme}.svg")
    named = {name for name, curve in curves.items() if curve}
    assert named == {"remat", "knob", "checkpoint", "none"}


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_links_lead_to_files_and_headings(path: Path) -> None:
    text = re.sub(r"```.*?```", "", text_of(path), flags=re.DOTALL)
    pictures = re.findall(r'(?:src|srcset)="([^"]+)"', text)
    for target in [*re.findall(r"\]\(([^)\s]+)\)", text), *pictures]:
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        found = (path.parent / name).resolve() if name else path
        assert found.is_file(), target
        if anchor:
            assert anchor in anchors(text_of(found)), target


def anchors(text: str) -> set[str]:
    """Names of the headings of a page, as GitHub and MyST make them, and of its own marks."""
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r"^\(([\w-]+)\)=$", text, flags=re.MULTILINE))


def test_every_page_is_in_the_table_of_contents_and_in_llms_txt() -> None:
    index, told = text_of(DOCS / "index.md"), text_of(DOCS / "llms.txt")
    names = [page.stem for page in PAGES if page.stem != "index"]
    names += [f"notebooks/{notebook.stem}" for notebook in (DOCS / "notebooks").glob("*.ipynb")]
    for name in names:
        assert f"\n{name}\n" in index, name
        assert f"({name}.html)" in told, name
        assert f"(docs/{name}." in text_of(README), name


def test_every_extra_is_on_the_page_on_installation() -> None:
    (table,) = re.findall(
        r"^\[project\.optional-dependencies\]\n(.*?)\n\n", text_of(ROOT / "pyproject.toml"), re.MULTILINE | re.DOTALL
    )
    extras = re.findall(r"^([\w-]+) = ", table, re.MULTILINE)
    assert len(extras) > 8
    page = text_of(DOCS / "installation.md")
    assert [name for name in extras if f"`{name}`" not in page] == []


def test_every_planner_is_on_its_page() -> None:
    page = text_of(DOCS / "planners.md")
    assert [name for name in planner_names() if f"| `{name}` |" not in page] == []


def test_every_error_and_every_warning_is_on_its_page() -> None:
    page = " ".join(text_of(DOCS / "errors.md").split())
    errors = re.findall(r"^class (\w+)\(.*(?:RematError)", text_of(ROOT / "remat_compiler" / "errors.py"), re.MULTILINE)
    assert len(errors) > 10
    assert [name for name in errors if f"`{name}`" not in page] == []
    found = sorted({warning for path in SOURCES for warning in warnings_of(path)})
    assert len(found) > 50
    assert [warning for warning in found if beginning(warning) not in page] == []


def beginning(warning: str) -> str:
    """The first words of a warning between its figures, enough to find it by."""
    parts = [part.strip(" ,;:(`") for part in re.split(r"%(?:\(\w+\))?[.0-9]*[sdf]", warning)]
    return next(" ".join(part.split()[:6]) for part in parts if len(part) >= 12)


def warnings_of(path: Path) -> list[str]:
    """The texts with which a module warns: literals, and those of names of the module."""
    tree = ast.parse(text_of(path))
    named = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "warning":
            template = node.args[0]
            if isinstance(template, ast.Subscript):
                template = template.value
            value = named.get(template.id) if isinstance(template, ast.Name) else template
            options = value.values if isinstance(value, ast.Dict) else [value]
            # A text that is put together by code of the module cannot be read without running it.
            found += [text for option in options if (text := literal(option, named)) is not None]
    return [text for text in found if len(text) >= 12]


def literal(node: Any, named: dict[str, ast.expr]) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [literal(side, named) for side in (node.left, node.right)]
        return None if None in parts else "".join(part for part in parts if part is not None)
    return literal(named.get(node.id), named) if isinstance(node, ast.Name) else None


def test_variables_have_the_names_of_their_options() -> None:
    page = text_of(DOCS / "options.md")
    for name, variable in re.findall(r"^\| `(\w+)` \| `(REMAT_\w+)` \|", page, flags=re.MULTILINE):
        assert variable == variable_of(name)
