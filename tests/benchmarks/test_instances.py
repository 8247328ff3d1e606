"""The instances of the benchmarks, and the program that compares planners on them: same bytes, honest tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from instruments.generated_instances import FAMILIES, generate
from instruments.make_instances import INSTANCES, instance_name, instance_paths
from instruments.planner_rows import Row, by_case, read_rows, summary, table, violations, write_rows
from instruments.problem_file import read_problem, unpack, without_sources
from planners import run_instance
from remat_compiler.ir.graph import Phase
from remat_compiler.ir.json_form import dumps
from remat_compiler.ir.plan import PlanStatus
from remat_compiler.simulate.verify import verify
from remat_passes.planning.auto import Auto
from remat_passes.planning.min_cut import MinCut
from remat_passes.planning.save_all import SaveAll

PATHS = instance_paths()
MOST_BYTES = 3_000_000
FEW = ("gpt2_small_kernels", "lstm_small_interpreter", "unet_small_interpreter", "chain_skewed_small")


def path_of(name: str) -> Path:
    (path,) = instance_paths(name)
    return path


def test_the_folder_is_small_and_holds_every_family_at_every_size() -> None:
    assert sum(path.stat().st_size for path in INSTANCES.iterdir()) < MOST_BYTES
    found = {instance_name(path) for path in PATHS}
    sizes = ("small", "medium", "full")
    assert {f"{family}_{size}" for family in FAMILIES for size in sizes} <= found
    forms = ("interpreter", "decomposed", "kernels")
    models = ("mlp", "lstm", "gpt2", "unet")
    assert {f"{model}_{size}_{form}" for model in models for size in sizes for form in forms} <= found


@pytest.mark.parametrize("path", PATHS, ids=instance_name)
def test_a_file_is_sound_and_equals_its_own_encoding(path: Path) -> None:
    text = unpack(path.read_bytes())
    problem = read_problem(path)
    assert dumps(problem).encode() == text
    assert without_sources(problem) == problem
    assert {op.phase for op in problem.graph.ops} >= {Phase.FORWARD, Phase.BACKWARD}
    assert set(problem.costs.provenance) <= {"nominal", "roofline:nominal"}


@pytest.mark.parametrize("size", ["small", "medium"])
@pytest.mark.parametrize("family", FAMILIES)
def test_generated_instances_are_what_their_seed_gives(family: str, size: str) -> None:
    assert read_problem(path_of(f"{family}_{size}")) == without_sources(generate(family, size))


@pytest.mark.parametrize("name", ["mlp", "lstm", "gpt2", "unet"])
def test_small_models_are_not_toys(name: str) -> None:
    problem = read_problem(path_of(f"{name}_small_decomposed"))
    assert sum(op.phase is Phase.FORWARD for op in problem.graph.ops) >= 60


@pytest.mark.parametrize("name", FEW)
def test_instances_are_planned(name: str) -> None:
    problem = read_problem(path_of(name))
    reference = MinCut().plan(problem)
    assert (reference.status is PlanStatus.FAILED) == (problem.reference is None)
    if reference.plan is not None:
        assert verify(replace(problem, budget_bytes=reference.peak_bytes), reference.plan, reference.peak_bytes) == []
    bare = replace(problem, reference=None)
    asked = replace(bare, budget_bytes=int(0.8 * SaveAll().plan(bare).peak_bytes))
    result = Auto(effort=200).plan(asked)
    assert result.status is PlanStatus.FEASIBLE
    assert result.plan is not None
    assert verify(asked, result.plan, result.peak_bytes) == []


def test_the_table_has_a_row_for_every_planner_and_position() -> None:
    planners = (Auto(effort=100), SaveAll(), MinCut())
    rows = run_instance("chain", read_problem(path_of("chain_uniform_small")), planners, (0.25, 1.0))
    assert len(rows) == 6
    assert all(len(case) == 3 for case in by_case(rows).values())
    by_name = {(row.planner, row.position): row for row in rows}
    assert by_name["auto", 0.25].fits
    assert by_name["save_all", 1.0].fits
    assert not by_name["save_all", 0.25].fits
    assert by_name["min_cut", 1.0].status == "failed"
    assert all(row.bound_ns <= row.added_ns for row in rows if row.fits)
    assert len(summary(rows)) == 4
    assert any("failed" in line for line in table(rows))


def row(planner: str, added_ns: int, status: str = "feasible") -> Row:
    return Row("graph", 10, 1000, 0.5, 100, planner, status, 90, added_ns, 0, 0.1, "")


def test_rows_survive_their_file(tmp_path: Path) -> None:
    rows = [row("auto", 50), row("greedy", 40), replace(row("auto", 30), position=0.75)]
    write_rows(tmp_path / "rows.json", rows)
    assert read_rows(tmp_path / "rows.json") == rows


def test_what_beats_auto_is_told() -> None:
    assert violations([row("auto", 50), row("greedy", 50), row("dtr", 10, "infeasible")]) == []
    assert violations([row("auto", 50), row("greedy", 40)]) == ["graph at 0.5: auto 5.000 %, greedy 4.000 %"]
    missed = violations([row("auto", 0, "infeasible"), row("greedy", 40)])
    assert missed == ["graph at 0.5: auto infeasible, greedy 4.000 %"]
