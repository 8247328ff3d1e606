"""The model of the allocator beside the allocator itself: the same requests in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from random import Random

import pytest
import torch

from remat_compiler.devices.caching_allocator import CachingAllocator
from remat_compiler.devices.expandable_segments import ExpandableAllocator

MIB = 2**20
_SERVE = """
import json, sys
import torch
torch.cuda.init()
alive, found = [], []
for size, choice in json.loads(sys.stdin.read()):
    alive.append(torch.cuda.caching_allocator_alloc(size))
    if choice < len(alive):
        torch.cuda.caching_allocator_delete(alive.pop(choice))
    found.append((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
print(json.dumps(found))
"""


def drawn_requests(seed: int) -> list[tuple[int, int]]:
    """Sizes, and after each the place of the older block that is freed, if there are so many."""
    rng = Random(seed)
    sizes = (lambda: rng.randint(1, 3_000), lambda: rng.randint(1, 3 * MIB), lambda: rng.randint(1, 40 * MIB))
    return [(rng.choice(sizes)(), rng.randint(0, 12)) for _ in range(300)]


@pytest.mark.gpu
@pytest.mark.parametrize(("kind", "setting"), [(CachingAllocator, "False"), (ExpandableAllocator, "True")])
def test_the_model_reserves_as_the_allocator_does(kind: type[CachingAllocator], setting: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": f"expandable_segments:{setting}"}
    for seed in range(4):
        asked = drawn_requests(seed)
        served = subprocess.run(
            [sys.executable, "-c", _SERVE],
            input=json.dumps(asked),
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        model, alive, found = kind(torch.cuda.mem_get_info()[1]), [], []
        for size, choice in asked:
            alive.append(model.allocate(size))
            if choice < len(alive):
                model.free(alive.pop(choice))
            found.append([model.allocated_bytes, model.reserved_bytes])
        assert found == json.loads(served.stdout.splitlines()[-1])
