"""The examples under trainers, run as a stranger would: they learn the same with a budget as without."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def losses(name: str, folder: Path, *arguments: str) -> tuple[list[float], str]:
    """The losses of two steps, and all that was told."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), "--steps", "2", *arguments],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
    )
    found = [float(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith("step ")]
    return found, done.stdout + done.stderr


@pytest.mark.parametrize("package", ["accelerate", "transformers", "lightning"])
def test_an_example_learns_the_same_under_a_budget(package: str, tmp_path: Path) -> None:
    for needed in ("transformers", "accelerate", package):
        pytest.importorskip(needed)
    # Lightning's takes the same batches as accelerate's; the Trainer shuffles.
    without = "transformers" if package == "transformers" else "accelerate"
    stock, said = losses(f"train_{without}.py", tmp_path)
    budgeted, of_budget = losses(f"train_{package}.py", tmp_path, "--budget", "6MiB")
    assert len(stock) == 2, said
    assert budgeted == pytest.approx(stock, abs=2e-6), of_budget
    assert "of 6.0 MiB, recomputation adds" in of_budget
    assert "remat:" not in said
