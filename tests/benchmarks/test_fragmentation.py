"""The comparison of fragmentation: what is emitted is what the backend sees, and rows add up."""

from __future__ import annotations

from pathlib import Path
from random import Random
from xml.etree import ElementTree

import torch
from torch import Tensor, nn

from remat_compiler import torch_compat
from remat_compiler.simulate.lives import Life
from remat_compiler.simulate.reserved import figures_of_steps
from studies.fragmentation.emitted_steps import INSIDE, PLACEABLE, EmittedStep, Emitter, live, stored, with_emitter
from studies.fragmentation.fragmentation import step_rows
from studies.fragmentation.fragmentation_tables import lengths_tables, over_percent, picture, step_tables
from studies.fragmentation.placed_lengths import Lengths, lengths_rows, shared_resident
from studies.fragmentation.placed_steps import PlacedStep, alive_bytes, arenas_throughout, chosen_arenas

MIB = 2**20


def step(length: int = 4) -> EmittedStep:
    """Values that a forward saves, temporaries of other sizes, and a gradient."""
    size = length * MIB
    lives = [
        (Life(size, 0, 6), PLACEABLE),
        (Life(2 * size, 1, 3), PLACEABLE),
        (Life(size, 2, 5), PLACEABLE),
        (Life(512, 3, 4), f"{INSIDE}attention"),
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
    assert [step().lives[n].size_bytes for n in allocations.in_trace] == [one.size_bytes for one in allocations.blocks]
    assert allocations.other_bytes == (0, 0, 0, 512, 8 * MIB, 8 * MIB)
    assert alive_bytes(step().lives) == max(a + b for a, b in zip(live(allocations.blocks, 6), allocations.other_bytes))
    assert alive_bytes(step().scaled(3).lives) == 3 * alive_bytes(step().lives)


def test_arenas_replace_the_lives_that_they_hold() -> None:
    placed = PlacedStep.of(step(), arenas_throughout(step()))
    assert placed.arenas.sizes
    assert alive_bytes(placed.lives) == alive_bytes(step().lives)
    covered = sum(arena >= 0 for arena in placed.arenas.arena_of)
    assert len(placed.lives) >= len(step().lives) - covered + len(placed.arenas.sizes)
    assert placed.arena_ratio >= placed.packing_ratio == 1.0
    assert sum(placed.at_peak().values()) == step().peak_bytes
    assert placed.at_peak()[f"{INSIDE}attention"] == 512


def test_rows_of_five_steps_come_as_they_are_and_scaled() -> None:
    small, large = step_rows("made up", 0.5, step())
    assert (small.scale, small.alive_bytes) == (1, alive_bytes(step().lives))
    assert 7.9 < large.alive_bytes / 2**30 <= 8.1
    lives, all_arenas = step().lives, PlacedStep.of(step(), arenas_throughout(step()))
    expected = [figures_of_steps(step().resident, step().state, [one] * 5) for one in (lives, all_arenas.lives)]
    assert [one.reserved_bytes for one in expected] == [small.online.segments, small.throughout.segments]
    assert [one.expandable_bytes for one in expected] == [small.online.expandable, small.throughout.expandable]
    for expandable, planned in ((False, small.planned.segments), (True, small.planned.expandable)):
        chosen = PlacedStep.of(step(), chosen_arenas(step(), (), expandable))
        assert figures_of_steps(step().resident, step().state, [chosen.lives] * 5).of(expandable) == planned
    text = "\n".join(step_tables([small, large]))
    assert f"{over_percent(large.online.segments, large.alive_bytes):.1f}" in text
    ElementTree.fromstring(picture([small, large]))


def test_lengths_share_the_allocator_and_arenas_and_what_is_resident() -> None:
    lengths = [step(length) for length in (6, 4, 5)]
    assert shared_resident(lengths) == [8 * MIB]
    small, _ = lengths_rows("made up", Lengths(tuple(lengths), step(8), (step(5), step(7))), (0.75, 0.5, 0.625))
    # The batch comes with its step.
    batches = [Life(length, 0) for length in (6, 4, 5)]
    rows = [[batch, *one.lives] for batch, one in zip(batches, lengths)]
    expected = figures_of_steps([8 * MIB], step().state, rows)
    assert (small.online.segments, small.online.expandable) == (expected.reserved_bytes, expected.expandable_bytes)
    assert small.alive_bytes == alive_bytes(step(6).lives) + 512
    # Arenas of the longest length are in each row, at their full size.
    arenas = arenas_throughout(step(8))
    assert arenas.sizes
    placed = [PlacedStep(one, arenas, step(8).allocations).lives for one in lengths]
    for lives in placed:
        assert {8 * MIB, *arenas.sizes} <= {life.size_bytes for life in lives}
    expected = figures_of_steps([8 * MIB], step().state, [[batch, *one] for batch, one in zip(batches, placed)])
    assert small.throughout.segments == expected.reserved_bytes
    order = Random(3).sample(range(3), 3)
    expected = figures_of_steps([8 * MIB], step().state, [rows[i] for i in order])
    assert len(small.online_in_orders) == len(small.planned_in_orders) > 3
    assert small.online_in_orders[3].expandable == expected.expandable_bytes
    assert "made up" in "\n".join(lengths_tables([small]))


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
        found = emitted.step(0)
        placed = PlacedStep.of(found, arenas_throughout(found))
        trace = emitted.placed(placed.arenas).trace
        assert trace is not None
        assert placed.arenas.sizes
        # The moments are others, since a value in an arena is no allocation; their order is the same.
        for steps in (3, 5):
            by_run = figures_of_steps(trace.resident, trace.state, [trace.lives] * steps)
            assert by_run == figures_of_steps(found.resident, found.state, [placed.lives] * steps)
        assert [life.size_bytes for life in trace.lives] == [life.size_bytes for life in placed.lives]
        seen.append(found)

    with_emitter(Net(), {"x": torch.randn(2, 2, 16, 64)}, use)
    assert {"gradients", "outputs", PLACEABLE} < set(seen[0].kinds)
    assert any("attention" in kind for kind in seen[0].kinds)
    path = tmp_path / "steps" / "net.json"
    assert stored(path, lambda: {"min": seen[0]}) == stored(path, dict) == {"min": seen[0]}


def test_one_code_gives_steps_of_all_lengths() -> None:
    seen: list[EmittedStep] = []

    def use(emitter: Emitter) -> None:
        (symbol,) = torch_compat.input_symbols(emitter.inputs)
        emitted = emitter.emit(64 * MIB)
        seen.extend(emitted.step(64 * MIB, {symbol.name: length}) for length in (symbol.hint, 12, 10))

    with_emitter(Net(), {"x": torch.randn(2, 2, 16, 64)}, use, changing=2)
    longest, *shorter = seen
    for one in shorter:
        # Nothing but sizes differs, so that arenas of the longest length serve all.
        assert [kind.replace("of odd sizes", PLACEABLE) for kind in one.kinds] == list(longest.kinds)
        assert [(life.made, life.freed) for life in one.lives] == [(life.made, life.freed) for life in longest.lives]
        assert one.peak_bytes < longest.peak_bytes
        pairs = [(one.lives[n].size_bytes, longest.lives[n].size_bytes) for n in longest.placeable]
        assert all(size <= most for size, most in pairs)
        assert sum(size for size, _ in pairs) < sum(most for _, most in pairs)
