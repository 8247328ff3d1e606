"""The comparison of fragmentation: what is emitted is what the backend sees, and rows add up."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import torch
from torch import Tensor, nn

from emitted_steps import PLACEABLE, EmittedStep, Emitter, live, shortened, stored, with_emitter
from fragmentation import lengths_rows, shared_resident, step_rows
from fragmentation_tables import lengths_tables, over_percent, picture, step_tables
from placed_steps import PlacedStep, alive_bytes
from remat_compiler.simulate.lives import Life
from remat_compiler.simulate.reserved import figures_of_steps

MIB = 2**20


def step(length: int = 4) -> EmittedStep:
    """Values that a forward saves, temporaries of other sizes, and a gradient."""
    size = length * MIB
    lives = [
        (Life(size, 0, 6), PLACEABLE),
        (Life(2 * size, 1, 3), PLACEABLE),
        (Life(size, 2, 5), PLACEABLE),
        (Life(512, 3, 4), "inside attention"),
        (Life(2 * size, 3, 4), PLACEABLE),
        (Life(8 * MIB, 4), "gradients"),
    ]
    return EmittedStep(
        budget_bytes=64 * MIB,
        peak_bytes=4 * size + 512,
        peak_moment=3,
        moments=6,
        boundary=3,
        resident=(8 * MIB, length),
        state=(8 * MIB, 8 * MIB),
        lives=tuple(life for life, _ in lives),
        kinds=tuple(kind for _, kind in lives),
    )


def test_a_step_is_put_to_the_grouping_as_it_was_emitted() -> None:
    allocations = step().allocations
    assert [block.size_bytes // MIB for block in allocations.blocks] == [4, 8, 4, 8]
    assert allocations.other_bytes == (0, 0, 0, 512, 8 * MIB, 8 * MIB)
    assert alive_bytes(step().lives, 1) == max(
        a + b for a, b in zip(live(allocations.blocks, 6), allocations.other_bytes)
    )


def test_arenas_replace_the_lives_that_they_hold() -> None:
    placed = PlacedStep.of(step())
    assert placed.arenas.sizes
    assert alive_bytes(placed.planned, 1) == alive_bytes(step().lives, 1)
    covered = sum(arena >= 0 for arena in placed.arenas.arena_of)
    assert len(placed.planned) >= len(step().lives) - covered + len(placed.arenas.sizes)
    assert placed.arena_ratio >= placed.packing_ratio == 1.0
    assert sum(placed.at_peak().values()) == step().peak_bytes
    assert placed.at_peak()["inside attention"] == 512


def test_rows_of_five_steps_come_as_they_are_and_scaled() -> None:
    small, large = step_rows("made up", 0.5, PlacedStep.of(step()))
    assert (small.scale, small.alive_bytes) == (1, alive_bytes(step().lives, 1))
    assert 7.9 < large.alive_bytes / 2**30 <= 8.1
    lives, placed = step().lives, PlacedStep.of(step())
    expected = [figures_of_steps(step().resident, step().state, [one] * 5) for one in (lives, placed.planned)]
    assert [one.reserved_bytes for one in expected] == [small.plain.segments, small.planned.segments]
    assert [one.expandable_bytes for one in expected] == [small.plain.expandable, small.planned.expandable]
    text = "\n".join(step_tables([small, large]))
    assert f"{over_percent(large.plain.segments, large.alive_bytes):.1f}" in text
    ElementTree.fromstring(picture([small, large]))


def test_lengths_share_the_allocator_and_what_is_resident() -> None:
    lengths = {str(length): step(length) for length in (6, 4, 5)}
    assert shared_resident(list(lengths.values())) == [8 * MIB]
    small, _ = lengths_rows("made up", lengths)
    # The batch comes with its step.
    rows = [[Life(length, 0), *step(length).lives] for length in (6, 4, 5)]
    expected = figures_of_steps([8 * MIB], step().state, rows)
    assert (small.plain.segments, small.plain.expandable) == (expected.reserved_bytes, expected.expandable_bytes)
    assert small.alive_bytes == alive_bytes(step(6).lives, 1) + 512
    alone = [PlacedStep.of(one).reserved(3, 1)[0].segments for one in lengths.values()]
    assert small.plain.segments >= max(alone) - 512
    assert "made up" in "\n".join(lengths_tables([small]))


def test_inputs_are_cut_along_what_is_a_length() -> None:
    tokens: dict[str, Tensor] = {"input_ids": torch.zeros(2, 10), "labels": torch.zeros(2, 10)}
    assert {tuple(one.shape) for one in shortened(tokens, 0.5).values()} == {(2, 5)}
    sequence: dict[str, Tensor] = {"sequence": torch.zeros(10, 3, 4), "labels": torch.zeros(3)}
    assert [tuple(one.shape) for one in shortened(sequence, 0.7).values()] == [(7, 3, 4), (3,)]


class Net(nn.Module):
    """Attention, whose result is outside of arenas, and layers, whose values are inside."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + nn.functional.scaled_dot_product_attention(layer(x).tanh(), x, x)
        return x.square().mean()


def test_replaced_lives_are_those_of_a_run_in_arenas(tmp_path: Path) -> None:
    seen: list[EmittedStep] = []

    def use(emitter: Emitter) -> None:
        emitted = emitter.emit("min")
        found = emitter.step(*emitted, 0)
        placed = PlacedStep.of(found)
        trace = emitter.placed(*emitted, placed.arenas).trace
        assert trace is not None
        assert placed.arenas.sizes
        # The moments are others, since a value in an arena is no allocation; their order is the same.
        for steps in (3, 5):
            by_run = figures_of_steps(trace.resident, trace.state, [trace.lives] * steps)
            assert by_run == figures_of_steps(found.resident, found.state, [placed.planned] * steps)
        assert [life.size_bytes for life in trace.lives] == [life.size_bytes for life in placed.planned]
        seen.append(found)

    with_emitter(Net(), {"x": torch.randn(2, 2, 16, 64)}, use)
    assert {"gradients", "outputs", PLACEABLE} < set(seen[0].kinds)
    assert any("attention" in kind for kind in seen[0].kinds)
    path = tmp_path / "steps" / "net.json"
    assert stored(path, lambda: {"min": seen[0]}) == stored(path, dict) == {"min": seen[0]}
