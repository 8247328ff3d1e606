"""When the callbacks tell what: once for each plan, and what a GPU was measured to hold as long as training goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from planned import report
from remat_compiler.report.store import add_report
from remat_compiler.trainers.plan_news import PlanNews

CPU = torch.device("cpu")


def test_figures_are_told_when_they_change() -> None:
    add_report(report(graph_name="of another model"))
    news = PlanNews()
    assert news.news(CPU) == {}, "nothing was compiled since"
    add_report(report(graph_name="graph1"))
    assert news.news(CPU)["remat/predicted_peak_bytes"] == 11_276
    assert news.news(CPU) == {}
    add_report(replace(report(graph_name="graph1"), checked_peak_bytes=12_000))
    assert news.news(CPU)["remat/predicted_peak_bytes"] == 12_000
    assert news.news(CPU, at_the_end=True) == {}


def test_a_gpu_tells_what_it_held_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda", 1)
    held = {gpu: 20_000}
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", held.__getitem__)
    news = PlanNews()
    assert news.news(gpu, at_the_end=True) == {}, "without a plan, there is nothing to compare it with"
    add_report(report(graph_name="graph1"))
    assert news.news(gpu)["remat/max_memory_allocated"] == 20_000
    held[gpu] = 30_000
    assert news.news(gpu) == {}
    assert news.news(gpu, at_the_end=True) == {"remat/max_memory_allocated": 30_000}
