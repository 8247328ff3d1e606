"""Rows `room` and `round` of linked instants (`windows`): what is held at one instant is within the budget.

**Rounded rows.**  Bytes and s are whole, so with any divisor D > 0 and the row `room` as ``sum of b * z <= room``,

    round      sum of floor(b / D) * z <= floor(room / D)

holds for every plan (Chvatal, Edmonds polytopes and a hierarchy of combinatorial problems, Discrete Mathematics 4,
1973).  With m results of b bytes in the room, ``D = floor(room / (m + 1)) + 1`` says that at most m results of more
than an (m + 1)-th of the room are there at once: the relaxation would keep two and a half of equal layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from remat_passes.bounds.instant import AHEAD, Instant
from remat_passes.bounds.rows import MEGABYTE, ONE, ZERO, Affine, Rows
from remat_passes.bounds.step_graph import StepGraph

ROUNDED = 8
"""Rounded rows of one instant at most."""


@dataclass(frozen=True, slots=True)
class InstantTerms:
    """What the program says of one instant t_i, in the names of `windows`.

    Attributes:
        instant: The instant.
        alive: s_i(v) by storage.
        done: d_i(p) by operator.
        behind: y_i(p) by operator.
    """

    instant: Instant
    alive: Mapping[int, Affine]
    done: Sequence[Affine]
    behind: Sequence[Affine]


def add_room(rows: Rows, graph: StepGraph, at: InstantTerms, limit: int | Affine) -> None:
    """Add the rows of one instant to `rows`.

    Args:
        rows: The program.
        graph: The live part of a problem.
        at: The instant.
        limit: The budget in bytes, or the variable that is the peak in megabytes, for which there are no rounded rows.
    """
    held, sizes = at.instant.held_bytes, [(term, size) for term, size in _chosen(rows, graph, at) if size]
    weights = [(term, -size / MEGABYTE) for term, size in sizes]
    if isinstance(limit, Affine):
        rows.weighed([(limit, 1.0), *weights], held / MEGABYTE)
        return
    room = limit - held
    if room < 0:
        rows.impossible = True
        return
    rows.weighed(weights, -room / MEGABYTE)
    for divisor in _divisors([size for _, size in sizes], room):
        rows.weighed(((term, float(-(size // divisor))) for term, size in sizes), float(-(room // divisor)))


def _chosen(rows: Rows, graph: StepGraph, at: InstantTerms) -> Iterable[tuple[Affine, int]]:
    """What the plan decides to hold at t_i, with its bytes."""
    for v, term in at.alive.items():
        # What the instant's own operator reads is part of `held_bytes`.
        if v not in at.instant.present and term.varies:
            yield term, graph.size_bytes[v]
    for p, done in enumerate(at.done):
        if done.varies:
            yield done, graph.kept_bytes[p]
        if graph.replay_bytes[p] and at.instant.state[p] != AHEAD:
            yield _waits(rows, at.behind[p], done), graph.replay_bytes[p]


def _waits(rows: Rows, behind: Affine, done: Affine) -> Affine:
    """Whether an operator ran before t_i and runs again, so that the random state of its first execution is held."""
    if not done.varies or not behind.varies:
        return behind if done == ONE else done if behind == ONE else ZERO
    waits = rows.variable()
    rows.weighed([(waits, 1.0), (behind, -1.0), (done, -1.0)], -1.0)
    return waits


def _divisors(sizes: Sequence[int], room: int) -> list[int]:
    """Divisors of the rounded rows: one for each number of results in the room, those with the most bytes first."""
    # How many results of each size the room holds; sizes that share this number share their row.
    total: dict[int, int] = {}
    for size in sizes:
        total[room // size] = total.get(room // size, 0) + size
    most = sorted(total, key=lambda number: (-total[number], number))[:ROUNDED]
    return [room // (number + 1) + 1 for number in most]
