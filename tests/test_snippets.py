"""The Python of README.md and of the documentation runs, page by page, as a reader would type it."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import remat_compiler
from front_page import DOCS, PAGES, README

FENCE = re.compile(
    r"(?:<!-- not run: (?P<why>[^>]+) -->\s*)?^(?P<indent> *)```python\n(?P<code>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
SLOW = {"fit", "quick_start", "recipes"}
"""Pages whose snippets take longest."""
RUN = [path for path in (README, *PAGES) if "```python" in path.read_text(encoding="utf-8")]
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


class Network(nn.Module):
    """A model that gives its loss as those of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, batch: torch.Tensor) -> Any:
        return SimpleNamespace(loss=self.linear(batch).square().mean())


@pytest.fixture(autouse=True)
def as_a_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In a folder of its own, by the interpreter unless a snippet names an inner compiler; nothing is left behind."""
    monkeypatch.chdir(tmp_path)
    for name, value in (("INNER", "eager"), ("COST_MODEL", "nominal"), ("CACHE_DIR", str(tmp_path / "cache"))):
        monkeypatch.setenv(f"REMAT_{name}", value)
    torch.compiler.reset()
    remat_compiler.clear_reports()
    # A snippet may set it.
    with torch._dynamo.config.patch(allow_rnn=False):
        yield
    torch.compiler.reset()
    remat_compiler.clear_reports()


def snippets(path: Path) -> Iterator[tuple[int, str]]:
    """Line and code of each snippet that is run."""
    text = path.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        if match["why"] is None:
            yield text.count("\n", 0, match.start("code")), textwrap.dedent(match["code"])


@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=[pytest.mark.slow] * (path.stem in SLOW), id=path.stem) for path in RUN]
)
def test_the_snippets_of_a_page_run_one_after_another(path: Path) -> None:
    given = {"model": Network(), "batch": torch.randn(4, 8), "batches": [torch.randn(4, 8)] * 2, "__name__": path.stem}
    found = 0
    with redirect_stdout(StringIO()):
        for line, code in snippets(path):
            # Empty lines before it, so that an error names the line of the page.
            exec(compile("\n" * line + code, str(path), "exec"), given)
            found += 1
    assert found or "<!-- not run:" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", RUN, ids=lambda path: path.stem)
def test_snippets_that_are_not_run_say_why_and_are_python(path: Path) -> None:
    matches = list(FENCE.finditer(path.read_text(encoding="utf-8")))
    assert len(matches) == path.read_text(encoding="utf-8").count("```python")
    for match in matches:
        compile(textwrap.dedent(match["code"]), str(path), "exec")
        assert match["why"] is None or len(match["why"]) > 10


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REMAT_COST_MODEL")
    given: dict[str, Any] = {"__name__": path.stem}
    found = list(cells(path))
    assert found
    with redirect_stdout(StringIO()):
        for cell in found:
            exec(compile(cell, str(path), "exec"), given)


def cells(path: Path) -> Iterator[str]:
    """The code of a notebook."""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            yield "".join(cell["source"])
