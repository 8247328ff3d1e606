"""Measured figures are kept between processes; a file that cannot be used is a warned miss."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn

from remat_compiler.compilation.graph_key import PlanKey, plan_key
from remat_compiler.costs import store
from remat_compiler.costs.store import FigureStore, shared_store
from remat_compiler.operators.table import TABLE, digest_of
from remat_compiler.options import RematOptions


def test_a_second_store_reads_what_the_first_kept(tmp_path: Path) -> None:
    FigureStore("time_ns", tmp_path).add({"mm": 7})
    assert dict(FigureStore("time_ns", tmp_path).current()) == {"mm": 7}
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]


def test_what_another_process_stored_first_wins(tmp_path: Path) -> None:
    first, second = FigureStore("rates", tmp_path), FigureStore("rates", tmp_path)
    assert not first.current()
    assert not second.current()
    first.add({"a": 1})
    second.add({"a": 2, "b": 3})
    assert dict(second.current()) == {"a": 1, "b": 3}
    assert dict(FigureStore("rates", tmp_path).current()) == {"a": 1, "b": 3}


def test_without_a_directory_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kept = FigureStore("time_ns")
    kept.add({"mm": 7})
    assert dict(kept.current()) == {"mm": 7}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", "\x00", '{"version": 0, "time_ns": {"mm": 7}}', '{"version": 1, "time_ns": {"mm": -7}}',
        "[" * 100_000, f'{{"version": 1, "time_ns": {{"mm": {10**40}}}}}', f'{{"version": {"9" * 5000}}}',
        '{"version": 1, "time_ns": {"mm": 7.5}}', '{"version": 1, "time_ns": {"mm": true}}', '{"version": 1}',
    ],
)  # fmt: skip
def test_a_broken_file_is_a_warned_miss(content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    FigureStore("time_ns", tmp_path).add({"mm": 7})
    (path,) = tmp_path.iterdir()
    path.write_text(content, encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        assert not FigureStore("time_ns", tmp_path).current()
    assert "cannot be used" in caplog.text
    FigureStore("time_ns", tmp_path).add({"mm": 8})
    assert json.loads(path.read_text(encoding="utf-8"))["time_ns"] == {"mm": 8}


def test_a_pipe_is_a_warned_miss_and_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    FigureStore("time_ns", tmp_path).add({"mm": 7})
    (path,) = tmp_path.iterdir()
    path.unlink()
    os.mkfifo(path)
    with caplog.at_level(logging.WARNING):
        assert not FigureStore("time_ns", tmp_path).current()
    assert "it is no regular file" in caplog.text
    FigureStore("time_ns", tmp_path).add({"mm": 8})
    assert dict(FigureStore("time_ns", tmp_path).current()) == {"mm": 8}


def test_a_rate_of_nothing_is_no_rate(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    FigureStore("rates", tmp_path).add({"flops_per_s": 0})
    assert dict(FigureStore("rates", tmp_path).current()) == {"flops_per_s": 0}
    assert not FigureStore("rates", tmp_path, least=1).current()
    assert "whole numbers from 1" in caplog.text


def test_a_folder_that_cannot_be_written_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("", encoding="utf-8")
    kept = FigureStore("time_ns", blocked / "below")
    with caplog.at_level(logging.WARNING):
        kept.add({"mm": 7})
    assert "cannot be written" in caplog.text
    assert dict(kept.current()) == {"mm": 7}


def test_another_environment_is_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = FigureStore("time_ns", tmp_path)
    kept.add({"mm": 7})
    monkeypatch.setattr(store, "environment", lambda: ("another",))
    assert not kept.current()
    kept.add({"mm": 9})
    assert len(list(tmp_path.iterdir())) == 2
    monkeypatch.undo()
    assert dict(kept.current()) == {"mm": 7}


def test_there_is_one_store_of_a_kind_and_folder(tmp_path: Path) -> None:
    assert shared_store("rates", tmp_path) is shared_store("rates", tmp_path)
    assert shared_store("rates", tmp_path) is not shared_store("time_ns", tmp_path)


def test_a_process_without_a_gpu_makes_no_context_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: pytest.fail("made a context"))
    assert "device cpu" in store.environment()


@pytest.mark.parametrize("owner", [torch.backends.cudnn.conv, torch.backends.cuda.matmul], ids=["cudnn", "cublas"])
def test_tensor_float_is_part_of_the_environment(owner: Any) -> None:
    """By the newer settings, too, after which the older ones raise an error."""
    before, as_it_is = owner.fp32_precision, store.environment()
    try:
        owner.fp32_precision = "ieee" if before == "tf32" else "tf32"
        assert store.environment() != as_it_is
    finally:
        owner.fp32_precision = before
    assert store.environment() == as_it_is


def test_the_environment_names_device_versions_and_threads() -> None:
    text = "\n".join(store.environment())
    for word in ("torch ", "device ", "threads ", store.device_name("cpu")):
        assert word in text


def test_figures_and_plans_of_other_facts_about_operators_are_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever changes a row of the table of operators has no version to raise."""
    FigureStore("most_workspace_bytes", tmp_path).add({"mm": 7})
    before = plan_key_of_nothing()
    row = TABLE["aten::mm"]
    with monkeypatch.context() as changed:
        changed.setattr(store, "DIGEST", digest_of({**TABLE, "aten::mm": replace(row, safe=not row.safe)}))
        assert not FigureStore("most_workspace_bytes", tmp_path).current()
        assert plan_key_of_nothing().digest != before.digest
    assert dict(FigureStore("most_workspace_bytes", tmp_path).current()) == {"mm": 7}
    assert plan_key_of_nothing() == before


def plan_key_of_nothing() -> PlanKey:
    return plan_key(fx.symbolic_trace(nn.Identity()), (), RematOptions(), 7, "rates")
