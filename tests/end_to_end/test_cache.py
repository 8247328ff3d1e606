"""Inductor's caches stay on: the same plan hits and still has its report, another budget misses."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from forked import run_program

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, sys, torch
import remat_compiler
from remat_compiler.backend import remat

torch.manual_seed(0)
layers = [layer for _ in range(4) for layer in (torch.nn.Linear(16, 16), torch.nn.Tanh())]
model = torch.nn.Sequential(*layers)
x = torch.randn(512, 16)
found = []
for budget in json.loads(sys.argv[1]):
    torch._dynamo.reset()
    remat_compiler.reset_stats()
    compiled = torch.compile(model, backend=remat, options={"memory_budget": budget}, dynamic=False)
    model.zero_grad()
    compiled(x).square().mean().backward()
    report = remat_compiler.reports()[-1]
    hit, solves = "compiled code and plan come from the cache" in report.notes, remat_compiler.stats().solves
    found.append([report.checked_peak_bytes, report.added_ns, hit, solves])
print(json.dumps(found))
"""


def run(folder: Path, *budgets: object, plans: str = "plans") -> list[list[object]]:
    """What each compilation in a new process reports: checked peak, added time, whether its code is cached, solves."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "passes")]),
        "REMAT_CACHE_DIR": str(folder / plans),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
    }
    done = run_program(PROGRAM, folder, environment, json.dumps(budgets))
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[list[object]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Caches of their own."""
    return tmp_path_factory.mktemp("caches")


def test_a_second_process_hits_with_its_report_and_another_budget_misses(folder: Path) -> None:
    (first,) = run(folder, 0.9)
    again, other = run(folder, 0.9, 0.8)
    assert not first[2]
    assert first[3]
    assert again == [first[0], first[1], True, 0]
    assert not other[2]
    assert other[0] < first[0]  # type: ignore[operator]


@pytest.mark.slow
def test_code_planned_under_other_rates_is_planned_again(folder: Path) -> None:
    (first,) = run(folder, 0.9)
    (store,) = (folder / "plans").glob("rates-*.json")
    before = store.read_text(encoding="utf-8")
    record = json.loads(before)
    record["rates"]["cpu bytes_per_s"] *= 2
    store.write_text(json.dumps(record), encoding="utf-8")
    (other,) = run(folder, 0.9)
    store.write_text(before, encoding="utf-8")
    assert not other[2]
    assert run(folder, 0.9) == [[first[0], first[1], True, 0]]


@pytest.mark.slow
def test_compiled_code_whose_plan_was_lost_is_planned_again(folder: Path) -> None:
    run(folder, 0.9)
    (found,) = run(folder, 0.9, plans="elsewhere")
    assert found[0]
    assert not found[2]
