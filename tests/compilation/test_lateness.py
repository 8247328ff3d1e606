"""A rank that compiles for too long is warned of, by a clock of the test's own."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from remat_compiler import torch_compat
from remat_compiler.compilation import lateness
from remat_compiler.compilation.lateness import told_if_late


@pytest.fixture(autouse=True)
def told_of_nothing() -> Iterator[None]:
    lateness._warn.cache_clear()
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize(("seconds", "limit_s", "is_told"), [(301, 600, True), (299, 600, False), (9000, None, False)])
def test_more_than_half_of_the_timeout_is_warned_of(
    seconds: int,
    limit_s: float | None,
    is_told: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    times = iter([0.0, float(seconds)])
    monkeypatch.setattr(lateness.time, "perf_counter", lambda: next(times))
    monkeypatch.setattr(torch_compat, "default_timeout_s", lambda: limit_s)
    with caplog.at_level(logging.WARNING), told_if_late():
        pass
    assert ("compiling took 301 s, and communication of the default group fails after 600 s" in caplog.text) is is_told


def test_the_timeout_is_the_default_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch_compat.default_timeout_s() is None
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=77))
    assert torch_compat.default_timeout_s() is None, "nobody waits for a process that trains alone"
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    assert torch_compat.default_timeout_s() == 77


def test_a_backend_without_a_timeout_has_none() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    assert torch_compat.default_timeout_s() is None
