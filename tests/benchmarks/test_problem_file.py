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
from instruments.problem_file import pack, read_problem, unpack, without_sources, write_problem
from remat_compiler.errors import FormatError
from remat_compiler.ir.graph import Phase
from remat_compiler.ir.json_form import dumps, loads
from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import CostTable, RematProblem
from remat_compiler.simulate.timeline import simulate

GRAPH = chain([8, 16, 32])
PROBLEM = RematProblem(GRAPH, CostTable((1,) * 6, (0,) * 6, ("nominal",) * 6), 100, None, joint_plan(GRAPH))


@pytest.mark.parametrize("name", ["problem.json", "problem.json.gz"])
def test_a_file_gives_the_problem_back_and_equal_problems_equal_bytes(name: str, tmp_path: Path) -> None:
    first, second = tmp_path / name, tmp_path / f"other_{name}"
    write_problem(first, PROBLEM)
    write_problem(second, read_problem(first))
    assert read_problem(first) == PROBLEM
    assert first.read_bytes() == second.read_bytes()


@settings(max_examples=40)
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


def is_of_an_older_version(document: Any) -> None:
    document["version"] = 0


def has_a_version_that_is_no_int(document: Any) -> None:
    document["version"] = True


def goes_in_a_circle(document: Any) -> None:
    """Each of two operators reads what the other one makes."""
    ops = document["data"]["graph"]["ops"]
    ops[0]["reads"] = sorted([*ops[0]["reads"], *ops[1]["writes"]])


def reads_its_own_result(document: Any) -> None:
    op = document["data"]["graph"]["ops"][1]
    op["reads"] = sorted([*op["reads"], *op["writes"]])


def is_too_large_for_64_bits(document: Any) -> None:
    for storage in document["data"]["graph"]["storages"][2:4]:
        storage["size_bytes"] = 2**61


def takes_too_long_for_64_bits(document: Any) -> None:
    document["data"]["costs"]["time_ns"][0] = 2**70


def frees_too_much_for_64_bits(document: Any) -> None:
    document["data"]["costs"]["workspace_bytes"][0] = -(2**70)


def allows_too_much(document: Any) -> None:
    document["data"]["budget_bytes"] = 2**63


def allows_less_than_no_time(document: Any) -> None:
    document["data"]["max_added_ns"] = -5


def refers_to_a_plan_in_no_order(document: Any) -> None:
    document["data"]["reference"]["steps"][0] = 1


def prices_too_few(document: Any) -> None:
    document["data"]["costs"]["time_ns"].pop()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (is_of_version_99, r"\$\.version: expected 1, got 99; write the file again"),
        (is_a_plan, r"\$\.format: expected 'remat/problem', got 'remat/plan'"),
        (reads_before_it_is_written, r"\$\.data\.graph: (.|\n)*op_0: reads f2 before any op wrote it"),
        (has_two_writers, r"\$\.data\.graph: (.|\n)*op_2: writes f2, which op_1 wrote"),
        (is_of_an_older_version, r"\$\.version: expected 1, got 0; write the file again"),
        (has_a_version_that_is_no_int, r"\$\.version: expected 1, got True"),
        (goes_in_a_circle, r"\$\.data\.graph: (.|\n)*op_0: reads f1 before any op wrote it"),
        (reads_its_own_result, r"\$\.data\.graph: (.|\n)*op_1: reads and writes storages \[3\]"),
        (is_too_large_for_64_bits, r"\$\.data\.graph\.storages: the sizes in bytes sum up to"),
        (takes_too_long_for_64_bits, r"\$\.data\.costs\.time_ns: the times in nanoseconds sum up to"),
        (frees_too_much_for_64_bits, r"\$\.data\.costs\.workspace_bytes: the workspaces in bytes sum up to"),
        (allows_too_much, r"\$\.data\.budget_bytes: expected at most 9223372036854775807, got 9223372036854775808"),
        (allows_less_than_no_time, r"\$\.data\.max_added_ns: expected at least 0, got -5"),
        (refers_to_a_plan_in_no_order, r"\$\.data\.reference\.steps\[0\]: op_1 reads f0 before op_0 made it"),
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


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("empty.json", b"", r"\$: the file is empty; copy it or write it again"),
        ("empty.json.gz", b"", r"\$: the file is empty; copy it or write it again"),
        (
            "page.json.gz",
            b"<html>not found</html>",
            r"not JSON: .*the name ends in \.gz, yet .* begins with b'<html>no'",
        ),
        ("archive.json.gz", b"PK\x03\x04" + bytes(60), r"not JSON: .*not packed by gzip: it begins with b'PK"),
        ("binary.json", bytes(range(256)), r"\$: not JSON"),
        ("noise.json.gz", pack(b"\xff\xfe noise"), r"\$: not JSON"),
        ("twice.json.gz", pack(pack(dumps(PROBLEM).encode())), r"\$: not JSON"),
        ("behind.json.gz", pack(dumps(PROBLEM).encode()) + b"more", r"packed by gzip and damaged"),
        ("deep.json", b"[" * 200_000, r"\$: not JSON"),
        ("list.json", b"[1, 2]", r'\$: expected an object with exactly the keys "data", "format" and "version"'),
    ],
)
def test_what_is_no_problem_at_all_is_refused(name: str, data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(FormatError, match=message) as error:
        read_problem(path)
    assert str(error.value).startswith(name)


def test_plain_text_under_a_packed_name_is_read_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "plain.json.gz"
    path.write_text(dumps(PROBLEM))
    assert read_problem(path) == PROBLEM


def test_what_is_no_file_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_problem(tmp_path / "missing.json.gz")
    with pytest.raises(IsADirectoryError):
        read_problem(tmp_path)


@settings(max_examples=150)
@given(problems(), st.data())
def test_one_changed_value_is_refused_or_simulated(problem: RematProblem, data: st.DataObject) -> None:
    """Whatever is read can be simulated; whatever cannot is a `FormatError`."""
    document = json.loads(dumps(problem))
    graph = document["data"]["graph"]
    places: list[Any] = [document["data"], *graph["ops"], *graph["storages"], document["data"]["costs"]]
    place = data.draw(st.sampled_from(places))
    key = data.draw(st.sampled_from(sorted(place)))
    strange = [None, True, -1, 0, 1.5, "x", [], {}, [0], [-1], 2**64, [2**64]]
    place[key] = data.draw(st.sampled_from(strange))
    try:
        read = loads(RematProblem, json.dumps(document))
    except FormatError:
        return
    steps = tuple(op.id for op in read.graph.ops)
    boundary = sum(op.phase is Phase.FORWARD for op in read.graph.ops)
    assert simulate(read.graph, read.costs, Plan(steps, min(boundary, len(steps)))).time_ns == read.costs.step_ns
