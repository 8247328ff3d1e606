"""Arenas of emitted graphs whose sizes change: planned for the largest sizes so far, they serve all smaller ones.

Steps of other lengths allocate other sizes, and what one leaves free fits the next one badly.  Arenas stay as they are
from step to step:

    plain    │■■■■■■■■│      │■■■■■│  │■■■■■■■│      each length has places of its own
    planned  │■■■■■■■■│      │■■■■■···│■■■■■■■·│     each value begins where it begins at the largest length

Sizes beyond those of the arenas run without, until arenas for larger ones are planned; that takes no compilation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil

from remat_compiler import torch_compat
from remat_compiler.arena.placing import Placement, PlacesBySize
from remat_compiler.compilation.arenas import Placed, planned_arenas, without_arenas
from remat_compiler.dry_run.dry_run import DryRun
from remat_compiler.dry_run.emitted_wrapper import EmittedGraph
from remat_compiler.dry_run.peak_formula import PeakFormula
from remat_compiler.dry_run.symbolic_run import SymbolicLife, SymbolicStep
from remat_compiler.log import logger_of
from remat_compiler.simulate.arenas import arena_lives
from remat_compiler.simulate.reserved import AllocationTrace

logger = logger_of(__name__)

CheckAt = Callable[[Mapping[str, int], Mapping[bool, Placement]], DryRun]
"""The dry run at sizes given by symbol, with allocations in arenas."""
_SMALLER = (5 / 8, 7 / 8, 3 / 4)
"""Sizes, as parts of the largest ones, for which arenas must be worth it, too."""
_AHEAD = 1.25
"""Arenas for sizes beyond all earlier ones are planned for sizes larger by this factor, if those fit."""
_MOST = 8
"""Sets of arenas that are remembered: a backward may still be to come whose forward ran with an earlier one."""


class ArenasBySize:
    """The arenas of one pair of graphs.

    Args:
        step: Its memory at any sizes.
        graphs: The graphs.
        check_at: Checks them at some sizes.
        others_run_between: Whether other graphs run between forward and backward.

    Attributes:
        reach: The largest sizes that have arenas; empty if there are none.
    """

    def __init__(
        self, step: SymbolicStep, graphs: Sequence[EmittedGraph], check_at: CheckAt, others_run_between: bool
    ) -> None:
        self.reach: tuple[int, ...] = ()
        self._step, self._graphs, self._check_at, self._shared = step, graphs, check_at, others_run_between
        self._known: dict[bool, tuple[tuple[tuple[int, ...], Placement], ...]] = {}
        self._formula: PeakFormula | None = None
        self._tried: tuple[int, ...] = ()

    def formula_at(self, sizes: Sequence[int]) -> PeakFormula | None:
        """The peak by size where `sizes` have arenas; else `None`."""
        covered = bool(self.reach) and all(size <= top for size, top in zip(sizes, self.reach))
        return self._formula if covered else None

    def grow(self, sizes: Sequence[int], fits: Callable[[tuple[int, ...]], bool]) -> None:
        """Plan arenas for `sizes` if those so far are too small.

        Args:
            sizes: Sizes of a call that is to come.
            fits: Whether a step of some sizes keeps to the budget.
        """
        if self._tried and all(size <= top for size, top in zip(sizes, self._tried)):
            return
        top = tuple(map(max, sizes, self._tried or sizes))
        for target in (tuple(ceil(_AHEAD * size) for size in top), top, tuple(sizes)):
            if fits(target):
                try:
                    self.place(target)
                except Exception as error:  # The step runs without arenas, too: a defect here must not end training.
                    logger.warning("planning arenas failed (%s), so there are none; please report this", error)
                    logger.debug("planning arenas failed", exc_info=error)
                    self.drop()
                return

    def place(self, sizes: tuple[int, ...]) -> DryRun:
        """Plan arenas for `sizes` and all smaller ones; the check at `sizes`."""
        self._tried = sizes
        named = dict(zip(self._step.symbols, sizes))
        check = self._check_at(named, {})
        reason = self._unplaceable(check)
        placed = reason or planned_arenas(
            check,
            self._smaller(check, sizes),
            self._graphs,
            lambda placements: self._check_at(named, placements),
            self._shared,
        )
        if isinstance(placed, str):
            return without_arenas(check, placed)
        self._take(sizes, placed)
        return placed.check

    def drop(self) -> None:
        """Have no arenas, now and later: nobody knows the peak of the step by a formula."""
        self.reach, self._formula, self._known = (), None, {}
        for graph in self._graphs:
            if graph.placed is not None:
                graph.placed.places = None

    def _unplaceable(self, check: DryRun) -> str:
        """Why sizes of the step cannot be told from its calls; empty if they can."""
        step = check.allocations
        if step is None or len(step.made) != len(self._step.graphs):
            return check.unknown or "the step is not one forward and one backward graph"
        for (is_backward, made), call in zip(step.made, self._step.graphs):
            if is_backward != call.is_backward or len(made) != len(call.made):
                return "its allocations differ from size to size"
            if set(call.positions) != set(self._step.symbols):
                return "its sizes are not all among the arguments of both graphs"
        return ""

    def _smaller(self, check: DryRun, sizes: tuple[int, ...]) -> list[AllocationTrace]:
        """What the step allocates at some smaller sizes."""
        trace = check.trace
        if trace is None:
            return []
        # Both runs made their storages in one order; those without bytes are in no trace.
        at = self._step.bytes_at(sizes)
        own = sorted((i for i, size in enumerate(at) if size), key=lambda i: self._step.lives[i].made)
        life_of, left = {}, list(reversed(own))
        for position, life in enumerate(trace.lives):
            # What an operator takes inside is none of them, and comes after what is made at its moment.
            if left and self._step.lives[left[-1]].made == life.made:
                life_of[position] = left.pop()
        found = []
        for part in _SMALLER:
            bytes_there = self._step.bytes_at([max(int(part * size), 1) for size in sizes])
            lives = [
                replace(life, size_bytes=bytes_there[life_of[position]]) if position in life_of else life
                for position, life in enumerate(trace.lives)
            ]
            found.append(replace(trace, lives=tuple(lives)))
        return found

    def _take(self, sizes: tuple[int, ...], placed: Placed) -> None:
        """Use the arenas from the next call on."""
        self._formula = self._formula_with(placed)
        for call in self._step.graphs:
            placement = placed.placements.get(call.is_backward)
            if placement is None:
                continue
            earlier = self._known.get(call.is_backward, ())
            self._known[call.is_backward] = ((sizes, placement), *earlier)[:_MOST]
            positions = tuple(call.positions[symbol] for symbol in self._step.symbols)
            for graph in self._graphs:
                if graph.placed is not None and graph.is_backward == call.is_backward:
                    graph.placed.places = PlacesBySize(positions, self._known[call.is_backward])
        self.reach = sizes

    def _formula_with(self, placed: Placed) -> PeakFormula:
        """The peak by size with arenas, whose own size does not change."""
        step, arenas = placed.step, placed.arenas
        gone: set[int] = set()
        holding: set[int] = set()
        for (_, made), call in zip(step.made, self._step.graphs):
            for block, number in zip(made, call.made):
                if block is not None and arenas.arena_of[block] >= 0:
                    gone.add(number)
                    if self._step.lives[number].is_held:
                        holding.add(arenas.arena_of[block])
        boundary = step.allocations.boundary
        more = []
        for arena in range(len(arenas.sizes)):
            for life in arena_lives(step.allocations, arenas, arena):
                ends = life.freed if life.freed is not None else boundary
                held = arena in holding and life.made < boundary <= ends
                more.append(SymbolicLife(life.made, life.freed, {torch_compat.ONE: life.size_bytes}, held))
        return self._step.formula(gone, more)
