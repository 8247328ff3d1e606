"""Devices on which a budget means something else than on one GPU or a CPU, without any of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from remat_compiler import torch_compat
from remat_compiler.compilation import unusual_devices
from remat_compiler.compilation.offloading import place_of
from remat_compiler.compilation.unusual_devices import tell_of_devices
from remat_compiler.costs.workspace import WorkspaceTable
from remat_compiler.options import RematOptions


@pytest.fixture(autouse=True)
def told_of_nothing() -> Iterator[None]:
    unusual_devices._warn.cache_clear()
    yield
    unusual_devices._warn.cache_clear()


def told(caplog: pytest.LogCaptureFixture, *names: str) -> list[str]:
    """What is said of these devices."""
    with caplog.at_level(logging.WARNING, logger="remat_compiler"):
        tell_of_devices(map(torch.device, names))
    return [record.getMessage() for record in caplog.records]


def test_nothing_is_said_of_a_cpu_and_one_gpu(caplog: pytest.LogCaptureFixture) -> None:
    assert told(caplog, "cpu", "cuda", "cuda:0", "meta") == []


def test_each_other_type_of_device_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    (message,) = told(caplog, "xpu:0", "cpu")
    assert "'xpu'" in message
    assert '"auto" knows no limit' in message
    assert len(told(caplog, "xpu:1", "mps")) == 2


def test_several_gpus_share_the_budget(caplog: pytest.LogCaptureFixture) -> None:
    (message,) = told(caplog, "cuda", "cuda:0", "cuda:1")
    assert "2 GPUs: memory_budget is what all of them may take together" in message


def test_no_operator_is_measured_on_a_device_whose_allocator_nobody_reads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = WorkspaceTable(tmp_path)
    aten = torch.ops.aten
    with torch_compat.FakeTensorMode():
        x = torch.empty(8, 8, device="xpu")
        assert table.probe(aten.cumsum.default, (x, 0), {}) == 0
        assert table.probe(aten.sort.default, (x,), {}) == 0
    assert not table.known, "no figure is kept"
    assert not caplog.records


def test_values_of_other_devices_are_not_moved(caplog: pytest.LogCaptureFixture) -> None:
    options = RematOptions(offload_budget=1 << 30)
    assert place_of(options, ["xpu", "cpu"]) is None
    assert "no effect on xpu" in caplog.text
