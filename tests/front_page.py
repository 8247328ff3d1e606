"""The figures that README.md and the documentation show, as the programs that measured them wrote them."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from remat_compiler.devices.gpus import GPUS
from remat_compiler.fitting.fit_report import FitPoint, FitReport
from remat_compiler.units import format_bytes

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = tuple(sorted(DOCS.glob("*.md")))
RESULTS = ROOT / "benchmarks" / "results"


def results(name: str) -> Any:
    """The contents of a file of results."""
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def demo_table() -> str:
    """The rows of the demo, as README.md shows them."""
    lines = ["| run | budget | predicted | measured |", "|---|--:|--:|--:|"]
    for row in results("demo.json")["rows"]:
        sizes = [row[name] for name in ("limit_bytes", "predicted_bytes", "measured_bytes")]
        # The limit of "min" is none, and that of the run without a budget.
        cells = ["" if size is None else format_bytes(size) for size in sizes]
        lines.append("| " + " | ".join([row["name"], *cells]).replace("|  |", "| |") + " |")
    return "\n".join(lines).replace("|  |", "| |")


def fit_answer() -> str:
    """The answer of `remat fit`, as it prints it."""
    record = results("fit_gpt2.json")
    points = tuple(_point(point) for point in record["points"])
    return str(FitReport(GPUS[record["device"]], record["budget"], points)).rstrip("\n")


def _point(record: dict[str, Any]) -> FitPoint:
    """A step of the answer, without the figures that follow from others."""
    known = {field.name for field in fields(FitPoint)}
    given: Any = {name: value for name, value in record.items() if name in known}
    return FitPoint(**given | {"unmodelled": tuple(record["unmodelled"])})


def first_sentence() -> str:
    """The sentence with which README.md begins, in one line."""
    paragraph = README.read_text(encoding="utf-8").split("\n\n")[1]
    return " ".join(paragraph.split())
