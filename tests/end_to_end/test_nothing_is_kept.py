"""What a step made is let go with its results: nothing of a compilation holds on to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import gc, json
from functools import partial
import torch
from torch import nn
from remat_compiler.backend import remat

model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(12)))
remat = partial(remat, options={"memory_budget": 0.8, "inner": "eager", "max_slowdown": None})
compiled = torch.compile(model, backend=remat)
loss = compiled(torch.randn(222, 32)).sum()
del loss
gc.collect()
found = [t for t in gc.get_objects() if type(t) is torch.Tensor and t.dim() == 2 and t.shape[0] == 222]
print(json.dumps(["pulp" in __import__("sys").modules, len(found)]))
"""
ROOT = Path(__file__).parents[2]


def test_a_forward_whose_results_are_let_go_leaves_nothing_behind(tmp_path: Path) -> None:
    """In a process of its own, whose first imports of libraries come amid the compilation."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "passes")])
    environment = {**os.environ, "PYTHONPATH": paths, "REMAT_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    imported, left = json.loads(done.stdout.splitlines()[-1])
    assert imported
    assert left == 0
