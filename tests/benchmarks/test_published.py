"""The comparisons with published figures: captured without memory, planned, and run small."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from instruments.capture_problems import capture
from instruments.problem_file import without_sources
from instruments.published_models import GPUS, MODELS, Gpt2, capture_fake
from remat_compiler.costs.workspace import WorkspaceTable
from remat_passes.planning.auto import Auto
from studies.hiremate import measured_gpt2
from studies.hiremate.published import by_case, plot, rows_of, saved_within, table
from studies.uniform_chains import uniform_models
from zoo import ZooModel

TINY = Gpt2("tiny", layers=2, width=32, heads=2, batch=2, length=16, vocabulary=64)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))
    torch._dynamo.reset()


@pytest.mark.parametrize("tokens_lost", [False, True])
def test_a_network_without_memory_is_captured_as_a_real_one(tokens_lost: bool) -> None:
    model = replace(TINY, tokens_lost=tokens_lost)
    fake = capture_fake(model).problems["v100"]
    real = capture(ZooModel("tiny", *model.build()), "interpreter", "nominal", WorkspaceTable())
    assert without_sources(fake).graph == without_sources(real).graph


def test_a_network_larger_than_this_machine_is_captured() -> None:
    large = Gpt2("large", layers=1, width=16384, heads=128, batch=64, length=1024)
    captured = capture_fake(large)
    parameters = sum(s.size_bytes for s in captured.problems["v100"].graph.storages if s.kept)
    assert parameters > 12 * 16384**2 * 4
    # 6 operations a parameter and token, at the rates of a GPU: a slower one takes longer.
    floor_ns = 6 * parameters / 4 * 64 * 1024 / GPUS["v100"].flops_per_s["float32"] * 1e9
    assert captured.problems["v100"].costs.step_ns > 0.9 * floor_ns
    assert captured.problems["v100"].costs.step_ns != captured.problems["rtx8000"].costs.step_ns


def test_the_networks_reach_the_sizes_of_the_comparison() -> None:
    short, tall = (capture_fake(replace(MODELS["gpt2-small"], layers=n)).joint_nodes for n in (1, 2))
    assert short + (MODELS["gpt2-112"].layers - 1) * (tall - short) > 16_000


def test_rows_save_what_was_asked_and_stay_above_their_bounds(tmp_path: Path) -> None:
    rows = rows_of("tiny", "v100", capture_fake(TINY), Auto(effort=500), (0.2, 0.4, 0.995), bounds=True)
    assert [row.added_percent is not None for row in rows] == [True, True, False]
    for row in rows[:2]:
        assert row.added_percent is not None
        assert row.bound_percent is not None
        assert row.saved >= row.asked
        assert row.bound_percent <= row.added_percent
    assert rows[2].saved < 0.995
    assert saved_within(rows, 1e9) == rows[1].saved
    assert list(by_case(rows)) == [("tiny", "v100")]
    assert "HiRemate: 50-70 % saved at 10-15 %" in "\n".join(table(rows))
    plot(rows, tmp_path / "published.png")
    assert (tmp_path / "published.png").is_file()


@pytest.mark.slow
def test_measured_rows_keep_their_budgets_and_equal_pytorch() -> None:
    model = Gpt2("tiny", 2, 32, 2, 4, 64, vocabulary=128, dropout=0.0, tokens_lost=True)
    first, second = measured_gpt2.run(model, "eager", (0.4,), rounds=2)
    assert (first.way, first.saved) == ("PyTorch", 0.0)
    assert second.peak_bytes <= second.budget_bytes
    assert second.saved >= 0.4
    assert second.gradient_error is not None
    assert second.gradient_error < 1e-5
    assert "kept yes" in measured_gpt2.line(second)


@pytest.mark.slow
def test_uniform_networks_are_run_again_as_often_as_planned(tmp_path: Path) -> None:
    rows = uniform_models.run(12, "eager", "chain_dp", (0.0, 0.3), width=16, batch=256)
    assert [row.position for row in rows] == [0.3, 0.0]
    assert all(row.kept and row.exact and row.gradient_error == 0.0 for row in rows)
    assert rows[1].most > rows[0].most >= 2
    uniform_models.plot(rows, tmp_path / "uniform.png")
    assert (tmp_path / "uniform.png").is_file()
