"""The tables of planners that move values: steps that grow with the batch, largest batches, and what is printed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from instruments.cnns import CIFAR, IMAGENET, convolution
from instruments.fake_capture import captured_on_fakes
from remat_compiler.costs.rates import paper_rates
from remat_compiler.devices.gpus import GPUS
from remat_passes.planning.auto import Auto
from remat_passes.planning.capuchin import Capuchin
from remat_passes.planning.home import Home
from remat_passes.planning.save_all import SaveAll
from remat_passes.policies.swarm import Turn
from studies.moving import delta_tables, home_tables, offload_curves
from studies.moving.growing_batch import GrowingBatch, image_step, largest_batch
from zoo.loss import Classifier

GPU = GPUS["rtx2080ti"]
PIXELS = 16


def small() -> nn.Sequential:
    """Four convolutions."""
    layers = [convolution(3 if n == 0 else 16, 16, 3) for n in range(4)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


@pytest.fixture(scope="module")
def step() -> Iterator[GrowingBatch]:
    torch._dynamo.reset()
    yield replace(image_step("small", small, PIXELS, 10, GPU, states=1), memory_bytes=64 << 20)
    torch._dynamo.reset()


def test_a_step_at_another_batch_is_what_is_captured_there(step: GrowingBatch) -> None:
    batch = 160

    def made() -> tuple[nn.Module, dict[str, Tensor]]:
        images, labels = torch.randn(batch, 3, PIXELS, PIXELS), torch.randint(10, (batch,))
        return Classifier(small()).train(), {"images": images, "labels": labels}

    there = captured_on_fakes("small", made, {"gpu": paper_rates(GPU)}).problems["gpu"]
    drawn = step.at(batch)
    assert [s.size_bytes for s in drawn.graph.storages] == [s.size_bytes for s in there.graph.storages]
    # Times are rounded to whole nanoseconds at both ends of the line.
    assert drawn.costs.time_ns == pytest.approx(there.costs.time_ns, abs=2)


def test_the_largest_batch_fits_and_a_larger_one_does_not(step: GrowingBatch) -> None:
    batch, result = largest_batch(step, SaveAll())
    assert result is not None
    assert step.taken_bytes(batch, result) <= step.memory_bytes
    over = step.at(batch + batch // 100 + 2)
    assert SaveAll().plan(over).peak_bytes > over.budget_bytes
    moved, _ = largest_batch(step, Capuchin(), batch)
    assert moved > 1.2 * batch
    assert largest_batch(replace(step, memory_bytes=0), SaveAll()) == (0, None)


def test_homes_tables(step: GrowingBatch, tmp_path: Path) -> None:
    planners = (SaveAll(), Capuchin(), Home(particles=20), Auto(effort=200))
    rows = home_tables.largest("VGG16", step, planners)
    batches = [row.batch for row in rows]
    assert batches == sorted(batches)
    named = [(planner.name, planner) for planner in planners[1:]]
    middle = (batches[0] + batches[1]) // 2
    answers = home_tables.answers("VGG16", step, [middle], [*named, ("auto, quick", Auto(effort=100))])
    by = {row.planner: row for row in answers}
    assert by["auto"].fits
    assert by["auto"].added_percent <= by["capuchin"].added_percent
    text = home_tables.tables(rows, answers)
    assert f"| VGG16 | {batches[0]} (" in text
    assert "home over capuchin" in text
    turns = home_tables.curve(step, middle, 10)
    assert turns
    assert all(isinstance(turn, Turn) for turn in turns)
    home_tables.plot({"VGG16": turns}, tmp_path / "turns.png")
    assert (tmp_path / "turns.png").is_file()


@pytest.mark.parametrize("name", ["SqueezeNet", "InceptionV3"])
def test_networks_answer_with_their_classes(name: str) -> None:
    build, pixels = CIFAR[name]
    with torch.device("meta"):
        out = build().eval()(torch.zeros(2, 3, pixels, pixels))
    assert out.shape == (2, 10)


def test_parameters_are_those_of_the_papers() -> None:
    """In millions, as published, by more than the head's classes for the CIFAR-10 ones."""
    published = {"ResNet-50": 25.56, "ResNet-101": 44.55, "ResNeXt-50": 25.03}
    with torch.device("meta"):
        for name, millions in published.items():
            assert sum(p.numel() for p in IMAGENET[name]().parameters()) / 1e6 == pytest.approx(millions, abs=0.01)
        inception = sum(p.numel() for p in CIFAR["InceptionV3"][0]().parameters())
    # Published with 1,000 classes and without the auxiliary head: 23.83 million.
    assert (inception + 990 * 2049) / 1e6 == pytest.approx(23.83, abs=0.02)


def test_deltas_rows_and_table(step: GrowingBatch) -> None:
    rows = delta_tables.smallest(replace(step, memory_bytes=1 << 30), "ResNet-50", 64)
    by = {row.planner: row for row in rows}
    assert by["delta"].fits
    assert by["delta"].memory_gb < by["PyTorch"].memory_gb
    assert by["auto"].added_percent <= by["delta"].added_percent
    assert "| ResNet-50 | 64 | delta |" in delta_tables.table(rows)


def test_curves_by_the_speed_of_the_link(step: GrowingBatch, tmp_path: Path) -> None:
    made = offload_curves.points("small", step.at(64), [0.5], [0, 1000], effort=200)
    alone, moved = made
    assert alone.added_percent is not None
    assert moved.added_percent is not None
    assert moved.added_percent <= alone.added_percent
    assert moved.moved_gb > 0 == alone.moved_gb
    assert "recomputed only" in offload_curves.table(made)
    offload_curves.plot(made, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").is_file()
