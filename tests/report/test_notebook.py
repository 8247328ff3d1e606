"""What notebooks show: the summary and the picture, of moderate size, and nothing that a page could stumble over."""

from __future__ import annotations

import re
from base64 import b64decode
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest

import remat_compiler
from drawn_graphs import chain, joint_plan
from planned import report
from remat_compiler.ir.plan import PlanResult, PlanStatus
from remat_compiler.ir.problem import CostTable, RematProblem
from remat_compiler.report.build import build_report
from remat_compiler.report.plan_report import PlanReport
from remat_compiler.report.store import Reports, add_report
from remat_compiler.report.summary import one_line, summary_text

EMPTY = {"img"}
"""Elements without an end."""
ATTRIBUTES = {"style", "alt", "src", "open"}
LARGEST = 200_000
NASTY = "</pre><script>alert('&')</script> \"quoted\""


class Page(HTMLParser):
    """HTML taken apart; every element must be closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.attributes.append((tag, dict(attrs)))
        if tag not in EMPTY:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        self.text += "\n"

    def handle_data(self, data: str) -> None:
        self.text += data

    @property
    def pictures(self) -> list[str]:
        """The words in each picture, one after another."""
        found = []
        for tag, attributes in self.attributes:
            if tag == "img":
                head, _, data = str(attributes["src"]).partition(",")
                assert head == "data:image/svg+xml;base64"
                root = ElementTree.fromstring(b64decode(data))
                found.append(" ".join(element.text or "" for element in root.iter()))
        return found


def page_of(shown: Any) -> Page:
    page = Page(shown._repr_html_())
    assert set(page.tags) <= {"div", "p", "pre", "table", "tr", "td", "details", "summary", "img"}
    for tag, attributes in page.attributes:
        assert set(attributes) <= ATTRIBUTES, "nothing that runs or leads elsewhere"
        # Of a theme, some have colours of their own for such elements.
        if tag != "img":
            assert re.search(r"\bcolor:#", str(attributes["style"]))
            assert "background:#" in str(attributes["style"])
    return page


def words_of(text: str) -> list[str]:
    return text.split()


def large_report() -> PlanReport:
    """A step as long as that of twelve layers, in which no two columns of the picture are alike."""
    sizes = [1024 * (1 + i * 7919 % 1000) for i in range(900)]
    graph = chain(sizes)
    costs = CostTable((1000,) * len(graph.ops), (0,) * len(graph.ops), ("roofline",) * len(graph.ops))
    asked = RematProblem(graph, costs, 10**9, None, joint_plan(graph))
    answer = PlanResult(PlanStatus.FEASIBLE, "save_all", joint_plan(graph))
    return build_report(asked, answer, graph_name="graph0", joint_nodes=3000, inner="inductor")


def test_a_report_is_its_summary_and_its_picture() -> None:
    made = report()
    page = page_of(made)
    assert sorted(words_of(page.text)) == sorted(words_of(summary_text(made)))
    (picture,) = page.pictures
    assert f"Memory over one step: {made.graph_name}" in picture


def test_long_words_break_in_the_last_column_only() -> None:
    """An operator's name is longer than what a page leaves to the column."""
    styles = [str(attributes["style"]) for tag, attributes in page_of(report()).attributes if tag == "td"]
    assert styles
    assert all(("overflow-wrap:anywhere" in style) != ("white-space:nowrap" in style) for style in styles)


def test_a_report_that_was_stored_without_curves_is_its_summary() -> None:
    page = page_of(replace(report(), memory=None))
    assert page.pictures == []
    assert "peak without a budget" in page.text


@pytest.mark.parametrize("field", ["graph_name", "planner", "inner", "notes"])
def test_text_is_escaped(field: str) -> None:
    made = replace(report(), **{field: (NASTY,) if field == "notes" else NASTY})
    page = page_of(made)
    assert NASTY in page.text
    assert page_of(Reports([made, made])).text.count(NASTY) >= 2


def test_a_long_step_is_shown_in_moderate_size() -> None:
    made = large_report()
    assert made.memory is not None
    assert len(set(made.memory.planned.columns)) > 400
    assert len(made._repr_html_()) < LARGEST
    assert len(made.to_json()) < 2 * len(replace(made, memory=None).to_json())


def test_the_list_of_reports_shows_the_latest_and_a_line_for_others() -> None:
    found = Reports(report(graph_name=f"graph{i}") for i in range(40))
    page = page_of(found)
    assert len(page.pictures) == 4
    assert sum("open" in attributes for _, attributes in page.attributes) == 1
    assert "16 graphs before these" in page.text
    assert [name for name in (f"graph{i}:" for i in range(16, 40)) if name not in page.text] == []
    assert "graph15:" not in page.text
    assert str(found) == "\n".join(map(one_line, found))
    assert len(found._repr_html_()) < LARGEST


def test_the_reports_of_the_process_are_a_list_that_is_shown() -> None:
    remat_compiler.clear_reports()
    assert "no graph has been planned" in page_of(remat_compiler.reports()).text
    add_report(report())
    found = remat_compiler.reports()
    assert found == [report()]
    assert isinstance(found, list)
    assert len(page_of(found).pictures) == 1
    remat_compiler.clear_reports()


@pytest.mark.parametrize("shown", [report(), Reports([report()])], ids=["one", "several"])
def test_ipython_shows_the_text_rather_than_all_fields(shown: Any) -> None:
    assert shown._repr_mimebundle_(include=None, exclude=None) == {
        "text/plain": str(shown).rstrip("\n"),
        "text/html": shown._repr_html_(),
    }
