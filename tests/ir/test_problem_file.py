"""Problems in files: the same bytes for the same problem, and a clear message for every damaged file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import problems
from drawn_graphs import chain, joint_plan
from remat_compiler.errors import FormatError
from remat_compiler.ir.json_form import dumps
from remat_compiler.ir.problem import CostTable, RematProblem
from remat_compiler.ir.problem_file import pack, read_problem, unpack, without_sources, write_problem

GRAPH = chain([8, 16, 32])
PROBLEM = RematProblem(GRAPH, CostTable((1,) * 6, (0,) * 6, ("nominal",) * 6), 100, None, joint_plan(GRAPH))


@pytest.mark.parametrize("name", ["problem.json", "problem.json.gz"])
def test_a_file_gives_the_problem_back_and_equal_problems_equal_bytes(name: str, tmp_path: Path) -> None:
    first, second = tmp_path / name, tmp_path / f"other_{name}"
    write_problem(first, PROBLEM)
    write_problem(second, read_problem(first))
    assert read_problem(first) == PROBLEM
    assert first.read_bytes() == second.read_bytes()


@settings(max_examples=40, deadline=None)
@given(problems())
def test_without_sources_changes_nothing_that_a_planner_reads(problem: RematProblem) -> None:
    bare = without_sources(problem)
    for op, other in zip(problem.graph.ops, bare.graph.ops):
        assert replace(op, nodes=(), source="") == other
    assert (bare.graph.storages, bare.costs) == (problem.graph.storages, problem.costs)


@given(st.integers(0, 200))
def test_a_file_that_is_cut_off_says_so(length: int) -> None:
    packed = pack(dumps(PROBLEM).encode())
    cut = packed[: 2 + length % (len(packed) - 2)]
    with pytest.raises(FormatError, match=r"damaged or cut off after .* copy it or write it again"):
        unpack(cut)


def test_a_plain_file_that_is_cut_off_is_no_json(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_text(dumps(PROBLEM)[:-40])
    with pytest.raises(FormatError, match=r"^cut\.json \$: not JSON"):
        read_problem(path)


def reads_before_it_is_written(document: Any) -> None:
    ops, storages = document["data"]["graph"]["ops"], document["data"]["graph"]["storages"]
    made_last = ops[2]["writes"][0]
    ops[0]["reads"] = sorted([*ops[0]["reads"], made_last])
    assert storages[made_last]["id"] == made_last


def has_two_writers(document: Any) -> None:
    ops = document["data"]["graph"]["ops"]
    ops[1]["writes"] = [*ops[1]["writes"], *ops[2]["writes"]]


def is_of_version_99(document: Any) -> None:
    document["version"] = 99


def is_a_plan(document: Any) -> None:
    document["format"] = "remat/plan"


def prices_too_few(document: Any) -> None:
    document["data"]["costs"]["time_ns"].pop()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (is_of_version_99, r"\$\.version: expected 1, got 99; write the file again"),
        (is_a_plan, r"\$\.format: expected 'remat/problem', got 'remat/plan'"),
        (reads_before_it_is_written, r"\$\.data\.graph: (.|\n)*op_0: reads f2 before any op wrote it"),
        (has_two_writers, r"\$\.data\.graph: (.|\n)*op_2: writes f2, which op_1 wrote"),
        (prices_too_few, r"\$\.data\.costs: .*differ in length"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name_and_place(
    damage: Callable[[Any], None], message: str, tmp_path: Path
) -> None:
    document = json.loads(dumps(PROBLEM))
    damage(document)
    path = tmp_path / "bad.json.gz"
    path.write_bytes(pack(json.dumps(document).encode()))
    with pytest.raises(FormatError, match=rf"^bad\.json\.gz {message}"):
        read_problem(path)
