"""What libraries keep on a card beside a step's tensors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from remat_compiler.devices.gpus import gpu_named
from remat_compiler.fitting.counted_step import library_bytes, resident_sizes

MIB = 2**20


@pytest.mark.parametrize(("name", "each"), [("h100", 32 * MIB), ("a100-40", 8 * MIB + 128 * 1024)])
def test_cublas_keeps_a_workspace_for_each_of_two_threads(name: str, each: int) -> None:
    """The backward runs on a thread of autograd's, which has a handle of its own."""
    gpu = gpu_named(name)
    step: Any = SimpleNamespace(parameters=[], input_tensors=[], device=torch.device("cuda"))
    assert library_bytes(gpu) == 2 * each
    assert resident_sizes(step, gpu) == [each, each]
