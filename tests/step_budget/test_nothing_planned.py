"""A budget that nobody keeps is said so once: Dynamo gave the backend no graph."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forked import run_program

ROOT = Path(__file__).parents[2]
PROGRAM = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = {inner}
    def forward(self, x):
        return self.inner(x)

model = Net()
step = torch.compile(model, backend="{backend}")
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    found = step(torch.randn(4, 5, 8))
    (found if isinstance(found, torch.Tensor) else found[0]).square().mean().backward()
    if {steps}:
        optimizer.step()
print("done")
"""


@pytest.mark.parametrize(
    ("inner", "backend", "steps", "said"),
    [
        ("nn.LSTM(8, 8)", "remat", True, 1),
        ("nn.LSTM(8, 8)", "remat", False, 1),
        ("nn.LSTM(8, 8)", "aot_eager", True, 0),
        ("nn.Linear(8, 8)", "remat", True, 0),
    ],
)
def test_it_is_said_once_where_nothing_was_planned(
    inner: str, backend: str, steps: bool, said: int, tmp_path: Path
) -> None:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "passes")])
    environment = {**os.environ, "PYTHONPATH": paths, "REMAT_CACHE_DIR": str(tmp_path)}
    program = "import remat_compiler.backend\n" + PROGRAM.format(inner=inner, backend=backend, steps=steps)
    done = run_program(program, tmp_path, environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr.count("memory_budget is not kept") == said
