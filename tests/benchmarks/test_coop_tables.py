"""Coop's tables: the arena of a plan, the smallest ratio, and what counts as a miss."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch

from builders import LIBRARY, TRAINING, random_problem, random_steps
from remat_compiler.ir.plan import Plan
from remat_compiler.simulate.lives import storage_lives
from remat_compiler.simulate.timeline import simulate
from studies.coop.coop_arena import arena_bytes
from studies.coop.coop_models import KERNELS, SPOS_STAGES, BiLSTM, ChoiceBlock, spos
from studies.coop.coop_tables import Found, Row, misses, smallest_ratio, tables


@pytest.mark.parametrize("name", TRAINING)
def test_an_arena_holds_what_is_live(name: str) -> None:
    problem = LIBRARY[name]
    plan = Plan.saving_all(problem.graph)
    taken = sum(life.size_bytes for life in storage_lives(problem, plan))
    assert simulate(problem.graph, problem.costs, plan).peak_bytes <= arena_bytes(problem, plan) <= taken


def test_an_arena_is_no_smaller_than_the_peak_of_any_plan() -> None:
    for seed in range(40):
        problem = random_problem(Random(seed))
        plan = random_steps(Random(seed), problem)
        assert simulate(problem.graph, problem.costs, plan).peak_bytes <= arena_bytes(problem, plan)


def test_the_smallest_ratio_is_found_past_one_that_fails() -> None:
    assert smallest_ratio(lambda ratio: ratio > 0.42) == pytest.approx(0.43)
    assert smallest_ratio(lambda ratio: ratio > 0.42 and abs(ratio - 0.6) > 0.01) == pytest.approx(0.43)
    assert smallest_ratio(lambda ratio: False) == 1.0


def test_losses_are_told() -> None:
    coop = Row("net", "coop", 0.5, True, 4.0, 0.1, 5.0, 6.0)
    dte, dtr = (replace(coop, planner=name, added_percent=3.0, scored=10.0) for name in ("dte", "dtr"))
    auto = replace(coop, planner="auto", fits=False)
    rows = [coop, dte, dtr, replace(auto, planner="selective"), auto]
    text = "\n".join(
        misses(rows, {("net", "coop"): 0.3, ("net", "dte"): 0.3, ("net", "dtr"): 0.2, ("net", "auto"): 0.4})
    )
    assert "fragmentation of coop at 5 % or above: net at 50%: 6.0 %" in text
    assert "coop behind dtr in added time: net at 50% (4.0 % against 3.0 %)" in text
    assert "scored in a search of dtr over coop's: median 2.0 times" in text
    assert "auto behind coop in added time: net at 50% (no plan against 4.0 %)" in text
    assert "coop behind dte in smallest memory: nowhere" in text
    assert "coop behind dtr in smallest memory: net" in text
    assert "auto behind coop in smallest memory: net" in text


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    row = Row("net", "coop", 0.5, True, 4.0, 0.1, 5.0, 6.0)
    found = Found([row], [replace(row, ratio=0.3)], [])
    found.write(tmp_path / "rows.json")
    assert Found.read(tmp_path / "rows.json") == found


def test_rows_without_a_plan_are_dashes() -> None:
    row = Row("net", "coop", 0.5, True, 4.0, 0.1, 5.0, 1.0)
    rows = [replace(row, planner=name, fits=name != "dtr") for name in ("coop", "dte", "dtr", "selective", "auto")]
    least = [replace(row, planner=name, ratio=0.3) for name in ("coop", "dte", "dtr", "selective", "auto")]
    parts = ("coop", "no window", "no partition", "nothing in place", "kept not first", "none of them")
    text = tables(rows, least, [replace(row, planner=name) for name in parts])
    assert "| net, `coop` | 4.0 |" in text
    assert "| net, `dtr` | – |" in text


def test_a_path_of_the_supernet_keeps_the_shapes_of_its_stages() -> None:
    images = torch.randn(2, 3, 32, 32)
    for kernel in KERNELS:
        halved = ChoiceBlock(16, 32, 2, kernel)(torch.randn(2, 16, 8, 8))
        assert halved.shape == (2, 32, 4, 4)
        assert ChoiceBlock(32, 32, 1, kernel)(halved).shape == halved.shape
    assert spos(0)(images).shape == (2, 1000)
    assert [type(a) for a in spos(1)] == [type(b) for b in spos(2)]
    assert sum(isinstance(layer, ChoiceBlock) for layer in spos(0)) == sum(blocks for blocks, _ in SPOS_STAGES)


def test_both_directions_of_the_recurrence_reach_the_loss() -> None:
    net = BiLSTM(2, 4, 3, 5)
    net(torch.randn(6, 2, 4), torch.tensor([1, 2])).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters())
