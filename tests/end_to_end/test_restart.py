"""A second process takes every plan of a graph of changing sizes from disk, whatever sizes come first."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, sys, torch
from functools import partial
import remat_compiler
from end_to_end.test_changing_sizes import AT_ONCE, Encoder, batch, differing
from remat_compiler.backend import remat
from remat_compiler.dynamic_shapes.variant_maker import VariantMaker
from torch._dynamo.utils import counters

inner, budget, lengths = sys.argv[1], int(sys.argv[2]), list(map(int, sys.argv[3:]))
VariantMaker.pays = AT_ONCE
torch.manual_seed(0)
model = Encoder()
options = {"memory_budget": budget, "inner": inner, "cost_model": "nominal", "max_slowdown": None}
compiled = torch.compile(model, backend=partial(remat, options=options))
differing_names = [differing(model, compiled, batch(n), n) for n in lengths]
found = remat_compiler.stats()
print(json.dumps({
    "equal": not any(differing_names), "solves": found.solves, "hits": found.exact_hits, "variants": found.variants,
    "similar": found.similar_hits, "inductor_misses": counters["inductor"]["fxgraph_cache_miss"],
    "inductor_hits": counters["inductor"]["fxgraph_cache_hit"],
}))
"""


def run(cache: Path, inner: str, budget: int, lengths: list[int]) -> dict[str, Any]:
    """What a process that trains on these lengths says of itself."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, [ROOT, ROOT / "passes", ROOT / "tests"])),
        "REMAT_CACHE_DIR": str(cache / "remat"),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, inner, str(budget), *map(str, lengths)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_a_second_process_solves_nothing(tmp_path: Path) -> None:
    lengths = [30, 90, 100, 60, 95, 100, 40]
    first = run(tmp_path, "eager", 550_000, lengths)
    assert first["equal"]
    assert first["solves"] > 0
    assert first["variants"] >= 3
    second = run(tmp_path, "eager", 550_000, [28, 100, 95, 50, 98, 89, 33])
    assert second["equal"]
    assert (second["solves"], second["similar"]) == (0, 0)
    assert 2 < second["variants"] <= first["variants"]
