"""Files that a compilation leaves: dumps, and what the next process takes from the cache folder."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

import remat_compiler
from remat_compiler import options
from test_backend import compiled, gradients, model
from versions import DENSE_GRADIENTS

pytestmark = pytest.mark.usefixtures("compiles_anew")


def test_a_dump_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with caplog.at_level(logging.WARNING, logger="remat_compiler"):
        compiled(model(), memory_budget=0.8, dump=blocked)(torch.randn(64, 32)).sum().backward()
    assert any("not written" in record.message for record in caplog.records)


def test_a_dump_holds_everything_that_was_decided(tmp_path: Path) -> None:
    compiled(model(), memory_budget=0.7, dump=tmp_path / "dump")(torch.randn(4096, 32)).sum().backward()
    (folder,) = (tmp_path / "dump").iterdir()
    expected = {"joint.py", "forward.py", "backward.py", "problem.json", "plan.json", "report.json", "memory.svg"}
    assert expected <= {file.name for file in folder.iterdir()}
    assert "_recompute" in (folder / "backward.py").read_text()


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x: torch.Tensor, masks: dict[str, torch.Tensor]) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x)) * self.scale * masks["keep"]
        return x.sum()


@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_the_graphs_of_a_dump_name_inputs_as_the_user_does(inner: str, tmp_path: Path) -> None:
    call = compiled(Named(), memory_budget=0.9, inner=inner, dump=tmp_path / "dump")
    call(torch.randn(64, 8), {"keep": torch.ones(64, 8)}).backward()
    (folder,) = (tmp_path / "dump").iterdir()
    own = [f"layers.{i}.{name}" for i in range(2) for name in ("weight", "bias")]
    for file, names in (
        ("joint.py", [*own, "scale", "x", "masks['keep']", "gradient of output 0"]),
        ("forward.py", [*own, "scale", "x", "masks['keep']"]),
        ("backward.py", ["layers.1.weight", "gradient of output 0"]),
    ):
        inputs = [line for line in (folder / file).read_text().splitlines() if "= <input>" in line]
        for name in names:
            (line,) = (line for line in inputs if line.endswith(f" {name}"))
            assert line.startswith("tangents" if "gradient" in name else "primals")


def test_a_stored_plan_with_a_broken_request_is_planned_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(64, 32)
    compiled(model(), memory_budget="1GiB")(x).sum().backward()
    (stored,) = (tmp_path / "cache" / "plans").iterdir()
    stored.write_text(stored.read_text().replace('"planner"', '"plannner"', 1))
    torch._dynamo.reset()
    remat_compiler.clear_reports()
    with caplog.at_level(logging.WARNING, logger="remat_compiler"):
        compiled(model(), memory_budget="1GiB")(x).sum().backward()
    assert len(remat_compiler.reports()) == 1
    assert "made again" in caplog.text


def outcome_of(folder: Path, budget: object) -> Path:
    """The file in which the outcome under `budget` is kept, after a step."""
    torch._dynamo.reset()
    before = set((folder / "plans").glob("*.json"))
    compiled(model(), memory_budget=budget)(torch.randn(4096, 32)).sum().backward()
    (made,) = set((folder / "plans").glob("*.json")) - before
    return made


def test_the_outcome_of_a_larger_budget_does_not_stand_for_a_smaller_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "cache"
    budget = 2_400_000 + DENSE_GRADIENTS * 4096 * 32 * 4
    small, large = outcome_of(cache, budget), outcome_of(cache, 10**9)
    shutil.copy(large, small)
    torch._dynamo.reset()
    remat_compiler.clear_reports()
    compiled(model(), memory_budget=budget)(torch.randn(4096, 32)).sum().backward()
    (report,) = remat_compiler.reports()
    assert report.checked_peak_bytes is not None
    assert report.checked_peak_bytes <= budget < report.peak_before_bytes
    assert f"ignored {small}, which answers another question" in caplog.text


def test_without_a_home_directory_training_goes_on_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("REMAT_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    options._warn_of_no_home.cache_clear()
    module, x = model(), torch.randn(4096, 32)
    expected = gradients(module, module, x)
    found = gradients(module, compiled(module, memory_budget=0.8), x)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert [record.message for record in caplog.records if "costs are not kept" in record.message] == [
        "remat: plans and measured costs are not kept: Could not determine home directory; name a folder by "
        "REMAT_CACHE_DIR"
    ]
