"""What a step asks for, and the blocks that serve it: the peak in blocks is the one of the allocator's model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from hypothesis import given

from builders import generators
from remat_compiler.dry_run.dry_run import DryRun
from remat_compiler.dry_run.storage_tracker import StorageLife
from remat_compiler.dry_run.traced_step import TracedStep
from remat_compiler.simulate.lives import Life
from remat_compiler.simulate.reserved import reserved_figures

MIB = 2**20
ON_AN_H100 = Path(__file__).parents[2] / "benchmarks" / "results" / "gpu_h100.json"


@dataclass(frozen=True)
class Moment:
    workspace_bytes: int


def life(size_bytes: int, made: int, freed: int | None) -> tuple[StorageLife, int | None]:
    return StorageLife(size_bytes, made, size_bytes, freed), freed


def peak_of(
    alive: list[tuple[StorageLife, int | None]], moments: list[Moment], traced: TracedStep, *, in_blocks: bool
) -> int:
    served = traced.blocks() if in_blocks else traced.as_asked()
    asked = [sum(one.size_bytes for one, end in alive if one.made <= i and (end is None or i < end)) for i in range(20)]
    more = served.more_at(20)
    return max(n + m.workspace_bytes + sum(extra) for n, m, extra in zip(asked, moments, more))


@given(rng=generators())
def test_the_peak_in_blocks_is_what_the_allocator_has_in_use(rng: Random) -> None:
    sizes = [0, 512 * rng.randrange(1, 4 * 2048), 512 * rng.randrange(1, 40 * 2048)]
    made = sorted(rng.randrange(20) for _ in range(rng.randrange(1, 20)))
    alive = [life(rng.choice(sizes), at, rng.choice([None, rng.randint(at + 1, 20)])) for at in made]
    moments = [Moment(rng.choice([0, 0, *sizes])) for _ in range(20)]
    resident = [512 * rng.randrange(1, 9 * 2048) for _ in range(rng.randrange(3))]
    kept = [Life(512 * rng.randrange(1, 9 * 2048), rng.randrange(20), None) for _ in range(rng.randrange(3))]
    traced = TracedStep.of(alive, moments, resident, resident[:1], kept)
    assert peak_of(alive, moments, traced, in_blocks=True) == reserved_figures(traced.trace).allocated_bytes
    assert peak_of(alive, moments, traced, in_blocks=False) <= peak_of(alive, moments, traced, in_blocks=True)


def test_a_block_is_only_cut_if_more_than_a_mebibyte_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """12 MiB are freed and serve 11.5; segments that expand are cut in any case."""
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    alive = [life(12 * MIB, 0, 1), life(23 * MIB // 2, 1, 3)]
    traced = TracedStep.of(alive, [Moment(0)] * 3, (), ())
    assert traced.blocks().bytes_of([alive[1][0]]) == 12 * MIB
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert traced.blocks().bytes_of([alive[1][0]]) == 23 * MIB // 2


def test_a_budget_leaves_room_for_the_blocks_that_an_h100_had_in_use() -> None:
    rows = json.loads(ON_AN_H100.read_text(encoding="utf-8"))["rows"]
    # An input that is copied since it begins at an odd place is beside the budget.
    rows = [row for row in rows if "predicted" in row and "requested" in row and row["job"] != "misaligned"]
    assert len(rows) >= 16
    for row in rows:
        check = DryRun(peak_bytes=row["predicted"], requested_bytes=row["requested"])
        assert row["measured"] <= check.needed_bytes, row["case"]
