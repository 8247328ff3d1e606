"""`examples/accelerate_registered_backends.patch`: it lets the Trainer and `accelerate launch` take "remat" by name."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

accelerate = pytest.importorskip("accelerate")
pytest.importorskip("transformers")

TESTS = Path(__file__).resolve().parents[1]
PATCH = TESTS.parent / "examples" / "accelerate_registered_backends.patch"
FOR_VERSION = "1.15.0"
PROGRAM = """
import sys
from transformers import Trainer, TrainingArguments
from accelerate.utils.dataclasses import DynamoBackend
import remat_compiler
from trainers.small_net import BATCH, SmallNet, rows

settings = dict(max_steps=2, logging_steps=1, per_device_train_batch_size=BATCH, report_to="none", save_strategy="no")
chosen = dict(torch_compile=True, torch_compile_backend="remat")
# The Trainer looks for the names of columns in the model, which accelerate compiles later.
Trainer(SmallNet(), TrainingArguments("out", use_cpu=True, **settings, **chosen), train_dataset=rows()).train()
(report,) = remat_compiler.reports()
print("planned", report.budget_bytes, report.peak_bytes, report.added_ns > 0)
print("misspelt", "REMATT" in DynamoBackend, "INDUCTOR" in DynamoBackend, DynamoBackend("REMAT").value)
"""


@pytest.fixture
def patched(tmp_path: Path) -> Path:
    """A folder with a patched copy of accelerate."""
    if importlib.metadata.version("accelerate") != FOR_VERSION:
        pytest.skip(f"the patch is for accelerate {FOR_VERSION}")
    if shutil.which("patch") is None:
        pytest.skip("needs the program patch")
    folder = tmp_path / "site"
    shutil.copytree(Path(accelerate.__file__).parent, folder / "accelerate")
    done = subprocess.run(["patch", "-p2", "-i", str(PATCH)], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the patched accelerate, and a budget by its variable."""
    path = os.pathsep.join([str(folder), str(TESTS), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "REMAT_MEMORY_BUDGET": "40000", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *command], env=environment, cwd=folder, capture_output=True, text=True, timeout=300
    )


@pytest.mark.slow
def test_the_trainer_takes_the_backend_by_name_and_the_budget_from_its_variable(patched: Path) -> None:
    done = run(patched, "-c", PROGRAM)
    assert done.returncode == 0, done.stdout + done.stderr
    _, budget, peak, recomputes = next(line for line in done.stdout.splitlines() if line.startswith("planned")).split()
    assert (int(budget), recomputes) == (40_000, "True")
    assert int(peak) <= 40_000
    assert "misspelt False True REMAT" in done.stdout


@pytest.mark.slow
def test_accelerate_launch_takes_it_too(patched: Path) -> None:
    program = patched / "program.py"
    program.write_text("import accelerate\nprint('backend', accelerate.Accelerator().state.dynamo_plugin.backend)\n")
    launch = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1", "--num_machines", "1"]
    done = run(patched, *launch, "--mixed_precision", "no", "--dynamo_backend", "remat", str(program))
    assert "backend REMAT" in done.stdout, done.stdout + done.stderr
    done = run(patched, *launch, "--mixed_precision", "no", "--dynamo_backend", "rematt", str(program))
    assert "Unknown dynamo backend: REMATT" in done.stderr
