"""Values that the program may move off the device from the forward to the backward, and the windows of their copies.

Variables, for value v, which the forward makes at anchor p and the backward first reads at an anchor of stage f:

    m[v]      v is off the device from its last use in the forward to stage f (binary)
    k[v]      v is alive at the end of stage f - 1, so that it is there in stage f without having been moved
    w, b, d   what the step waits for copies out, for copies back, and loses because copies slow it down

v is there at the start of stage f if it was kept or moved: ``s[f,v] <= k[v] + m[v]``.  Copies of one direction follow
each other, so all copies out of values made from anchor p on pass between p and the boundary, and all copies back of
values that are read up to stage f pass between the boundary and f, or the step waits: one row for each such window.

Deviation from what plans can do: a value is moved at most once, and only across the boundary.  So the program's optimum
is no bound for plans that move values; the simulator judges its plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pulp

from remat_compiler.ir.graph import Phase
from remat_compiler.ir.plan import in_pages
from remat_passes.exact.space import BOUNDARY, Space
from remat_passes.transfers.gaps import movable_storages

Row = tuple[dict[pulp.LpVariable, int], int]
"""Coefficients, and the most that their sum may be."""


@dataclass(frozen=True, slots=True)
class MovedValues:
    """Variables of the values that may be moved; without any where nothing may be.

    Attributes:
        space: The space.
        boundary: The stage in which the boundary stands; -1 if nothing may be moved.
        returns: The stage in which the backward first reads each.
        moved: m[v].
        kept: k[v].
        waits: w and b.
        drag: d.
    """

    space: Space
    boundary: int
    returns: Mapping[int, int]
    moved: Mapping[int, pulp.LpVariable]
    kept: Mapping[int, pulp.LpVariable]
    waits: tuple[pulp.LpVariable, ...]
    drag: tuple[pulp.LpVariable, ...]

    @staticmethod
    def of(space: Space, comes: Callable[[int, int], bool]) -> MovedValues:
        """The values that may be moved.

        Args:
            space: The space.
            comes: Whether a storage may come into a stage, by stage and storage.
        """
        boundary = next((t for t, stage in enumerate(space.stages) if BOUNDARY in stage.anchors), -1)
        if not space.problem.moves or boundary < 0:
            return MovedValues(space, -1, {}, {}, {}, (), ())
        returns = {v: f for v, f in _first_reads(space, boundary).items() if comes(f, v)}
        return MovedValues(
            space,
            boundary,
            returns,
            {v: pulp.LpVariable(f"m_{v}", cat=pulp.LpBinary) for v in returns},
            {v: pulp.LpVariable(f"k_{v}", 0, 1) for v in returns},
            (pulp.LpVariable("w", 0), pulp.LpVariable("b", 0)) if returns else (),
            (pulp.LpVariable("d", 0),) if returns else (),
        )

    def rows(self, runs: Mapping[tuple[int, int], pulp.LpVariable]) -> list[Row]:
        """The room off the device, the windows of the copies, and what they slow down.

        Args:
            runs: Variable of each execution in a gap, by stage and operator.
        """
        if not self.returns:
            return []
        graph, costs = self.space.problem.graph, self.space.problem.costs
        link = costs.links[0]
        size = {v: graph.storages[v].size_bytes for v in self.returns}
        out = {v: link.out_ns(size[v]) for v in self.returns}
        back = {v: link.back_ns(size[v]) for v in self.returns}
        found: list[Row] = [
            ({self.moved[v]: in_pages(size[v]) for v in self.returns}, self.space.problem.offload_bytes)
        ]
        boundary, (wait_out, wait_back) = self.boundary, self.waits
        maker = {v: self.space.index.producer[v] for v in self.returns}
        for first in sorted({self.space.made_at[op] for op in maker.values()}):
            later = [v for v in self.returns if self.space.made_at[maker[v]] >= first]
            anchors = self._anchors(first, boundary, ahead=True)
            # What runs up to the first of the values is over before its copy begins.
            anchors = anchors[1 + min(anchors.index(maker[v]) for v in later) :]
            row = {self.moved[v]: out[v] for v in later}
            found.append(self._window(row, anchors, range(first + 1, boundary + 1), runs, wait_out))
        for last in sorted(set(self.returns.values())):
            row = {self.moved[v]: back[v] for v in self.returns if self.returns[v] <= last}
            anchors = self._anchors(boundary, last - 1, ahead=False)
            found.append(self._window(row, anchors, range(boundary + 1, last), runs, wait_back))
        # Nobody is slowed down by a copy that the step waits for.
        if link.drag_percent:
            slowed = {self.moved[v]: link.drag_percent * (out[v] + back[v]) for v in self.returns}
            found.append(
                ({**slowed, **dict.fromkeys(self.waits, -link.drag_percent), **dict.fromkeys(self.drag, -100)}, 0)
            )
        return found

    @property
    def begun(self) -> list[tuple[pulp.LpVariable, int]]:
        """The time that the two copies of each value take from the step as they are begun, by m[v]."""
        if not self.returns:
            return []
        begin_ns = self.space.problem.costs.links[0].begin_ns
        return [(moved, 2 * begin_ns) for moved in self.moved.values() if begin_ns]

    def _window(
        self,
        row: dict[pulp.LpVariable, int],
        anchors: list[int],
        gaps: range,
        runs: Mapping[tuple[int, int], pulp.LpVariable],
        wait: pulp.LpVariable,
    ) -> Row:
        """Copies of `row` pass while `anchors` and what is executed in `gaps` run, or are waited for."""
        times = self.space.problem.costs.time_ns
        beside = {run: -times[op] for (t, op), run in runs.items() if t in gaps and times[op]}
        return {**row, **beside, wait: -1}, sum(times[op] for op in anchors)

    def _anchors(self, first: int, last: int, *, ahead: bool) -> list[int]:
        """Operators that are anchors of these stages (-1: of none of them), ahead of the boundary or behind it."""
        found = list(self.space.skipped) if first < 0 else []
        for t in range(max(first, 0), last + 1):
            marks = self.space.stages[t].anchors
            # Of the stage in which the boundary stands, only what is on this side of it.
            cut = marks.index(BOUNDARY) if t == self.boundary else len(marks)
            found += marks[:cut] if ahead else marks[cut if t == self.boundary else 0 :]
        return [op for op in found if op >= 0]


def _first_reads(space: Space, boundary: int) -> dict[int, int]:
    """The first stage behind the boundary of which an anchor reads a value that may be moved, by value."""
    ops, movable, found = space.problem.graph.ops, movable_storages(space.problem.graph), dict[int, int]()
    for t in range(boundary + 1, len(space.stages)):
        for anchor in space.stages[t].anchors:
            for v in space.index.reads[anchor] if anchor >= 0 else ():
                maker = space.index.producer[v]
                # Made by an anchor of the forward, so it is there for certain before the boundary.
                if movable[v] and maker in space.made_at and ops[maker].phase is Phase.FORWARD:
                    found.setdefault(v, t)
    return {v: t for v, t in found.items() if not space.held(v) and not space.unsavable(v)}
