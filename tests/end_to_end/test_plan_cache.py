"""Plans are solved once: for all processes, and for lengths that are near each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import remat_compiler
from remat_compiler.backend import remat

ROOT = Path(__file__).resolve().parents[2]
BUDGET = 480_000


class Reader(nn.Module):
    """Layers of unequal widths over a sequence of any length."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        widths = (16, 64, 24, 48, 16, 56, 32, 64, 16)
        self.layers = nn.ModuleList(nn.Linear(one, two) for one, two in pairwise(widths))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.square().mean()


def gradients(call: Any, model: nn.Module, length: int) -> list[torch.Tensor]:
    torch.manual_seed(length)
    x = torch.randn(2, length, 16)
    model.zero_grad(set_to_none=True)
    call(x).backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    remat_compiler.clear_reports()
    remat_compiler.reset_stats()
    yield
    torch._dynamo.reset()
    remat_compiler.reset_stats()


def compiled(model: nn.Module, **options: object) -> Any:
    given = {"memory_budget": BUDGET, "inner": "eager", "cost_model": "nominal", **options}
    return torch.compile(model, backend=partial(remat, options=given), dynamic=False)


def counted() -> tuple[int, int, int]:
    """Solves, exact and similar hits since the last call."""
    found = remat_compiler.stats()
    remat_compiler.reset_stats()
    return found.solves, found.exact_hits, found.similar_hits


def test_lengths_that_are_near_share_a_plan_and_train_as_in_eager(tmp_path: Path) -> None:
    model, budget = Reader(), 430_000
    call = compiled(model, memory_budget=budget)
    for length, expected in ((200, (1, 0, 0)), (198, (0, 0, 1)), (192, (1, 0, 0)), (210, (1, 0, 0))):
        planned = gradients(call, model, length)
        assert counted() == expected, length
        assert all(map(torch.equal, planned, gradients(model, model, length)))
        report = remat_compiler.reports()[-1]
        assert report.added_ns > 0
        assert report.checked_peak_bytes is not None
        assert report.checked_peak_bytes <= budget
        assert any("the plan comes from the cache (made at " in note for note in report.notes) == bool(expected[2])


def test_without_the_cache_every_length_is_solved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMAT_DISABLE_CACHE", "1")
    model = Reader()
    call = compiled(model)
    for length in (200, 198):
        gradients(call, model, length)
        assert counted() == (1, 0, 0)
    torch._dynamo.reset()
    gradients(compiled(model), model, 200)
    assert counted() == (1, 0, 0)
    assert list(tmp_path.iterdir()) == []


def test_another_budget_planner_or_width_is_solved() -> None:
    model = Reader()
    gradients(compiled(model), model, 200)
    assert counted() == (1, 0, 0)
    wider = Reader()
    wider.layers[3] = nn.Linear(48, 20)
    wider.layers[4] = nn.Linear(20, 56)
    for other, options in ((model, {"memory_budget": BUDGET + 1}), (model, {"planner": "greedy"}), (wider, {})):
        torch._dynamo.reset()
        gradients(compiled(other, **options), other, 200)
        assert counted() == (1, 0, 0)
    torch._dynamo.reset()
    gradients(compiled(model), model, 200)
    assert counted() == (0, 1, 0)


PROGRAM = """
import json, sys, torch
import remat_compiler
from test_plan_cache import Reader, compiled, gradients

model = Reader()
model_gradients = gradients(compiled(model, inner=sys.argv[1]), model, 200)
equal = all(map(torch.allclose, model_gradients, gradients(model, model, 200)))
found, report = remat_compiler.stats(), remat_compiler.reports()[-1]
print(json.dumps([found.solves, found.exact_hits, report.checked_peak_bytes, report.added_ns, equal]))
"""


def run(cache: Path, inner: str, inductor: Path) -> subprocess.Popen[str]:
    folders = [ROOT, ROOT / "passes", Path(__file__).parent]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
        "REMAT_CACHE_DIR": str(cache),
        "TORCHINDUCTOR_CACHE_DIR": str(inductor),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, inner],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def answer(process: subprocess.Popen[str]) -> list[object]:
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err[-2000:]
    assert "WARNING" not in err
    found: list[object] = json.loads(out.splitlines()[-1])
    return found


@pytest.mark.slow
def test_two_processes_at_once_agree_and_a_later_one_solves_nothing(tmp_path: Path) -> None:
    both = [run(tmp_path / "cache", "eager", tmp_path / "a") for _ in range(2)]
    first, second = map(answer, both)
    assert first[2:] == second[2:]
    assert first[-1]
    (path,) = (tmp_path / "cache" / "plan-cache").iterdir()
    assert json.loads(path.read_text(encoding="utf-8"))["format"] == "remat/cached-plan"
    assert answer(run(tmp_path / "cache", "eager", tmp_path / "b")) == [0, 1, *first[2:]]
