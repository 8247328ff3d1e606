"""What is counted beside the results of operators."""

from __future__ import annotations

import torch

from remat_compiler import torch_compat
from remat_compiler.dry_run.storage_tracker import StorageTracker


def test_a_storage_counts_from_when_it_is_given_memory_until_it_has_none() -> None:
    tracker = StorageTracker(torch_compat.FakeTensorMode(), "cpu", ())
    storage = torch.zeros(1024).untyped_storage()
    life = tracker.resized(storage, "gathered")
    assert tracker.live_bytes == 4096
    tracker.release(life)
    assert tracker.live_bytes == 0
    assert [(moment.label, moment.live_bytes) for moment in tracker.moments][:1] == [("gathered", 4096)]
    assert tracker.lives == [life]
