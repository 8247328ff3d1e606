"""The space of plans that the exact planner searches: which operators may run, and which storages live, in each gap.

First executions keep their order.  The *anchors* are all forward operators, then all backward operators, in joint
order, with a mark between them for the boundary; a plan is a filling of the *gaps* before them:

    gap 0 | f0 | gap 1 | f1 | gap 2 | boundary | gap 3 | b1 | gap 4 | b0

In each gap every repeatable forward or tangent-free operator runs at most once, in joint order (or `passes_per_gap`
times: the gap is then several gaps with nothing between them).  The optimum is that of this space: with any
order and number of repetitions in a gap, 2 of 250 random problems of up to 8 forward operators have a cheaper plan (see
`tests/exact/exhaustive.py`, which searches both).  Backward operators run once.  Tangent-free
operators have no anchor: their first execution stands in a gap too.  Those that the backward needs, or that run in any
case (`StepIndex.demanded`), run at least once; if there are any of the latter, a last gap follows.

*Stage* t is gap t with the anchor after it.  Two reductions shrink the stages without changing the optimum:

merge_prefix  As long as everything that may ever be useful fits, nothing needs to be dropped: a plan that repeats an
              operator there is as good when it retains the result.  So the gaps up to the first stage that may
              overflow are empty, and any result made before it may be alive at its entry.
merge_suffix  Once everything that may still be useful fits, nothing limits a repetition: all gaps from there on are
              one gap without capacity.
"""

from __future__ import annotations

from dataclasses import dataclass

from remat_compiler.ir.graph import Op, Phase, SavePolicy, Trait
from remat_compiler.ir.problem import RematProblem
from remat_passes.sequences.sequence import StepIndex, is_pinned

BOUNDARY, PAUSE, END = -1, -2, -3
"""Anchors that are no operators: between forward and backward, within a gap, and after the last operator."""


class OutsideSpace(Exception):
    """The problem has something that no plan of the space can express; the message says what."""


@dataclass(frozen=True, slots=True)
class Reductions:
    """Reductions of the program that do not change its optimum; each may be switched off.

    Attributes:
        merge_prefix: Empty the gaps before the first stage that may overflow.
        merge_suffix: Make one gap of all gaps after the last stage that may overflow.
        drop_slack_rows: Leave out capacities that hold for every choice.
        reachable_sums: Lower each capacity to the largest sum of its sizes that does not exceed it.
        relax_states: Declare only executions as integers; the states follow from them.
    """

    merge_prefix: bool = True
    merge_suffix: bool = True
    drop_slack_rows: bool = True
    reachable_sums: bool = True
    relax_states: bool = True


@dataclass(frozen=True, slots=True)
class Stage:
    """One gap with the anchors after it.

    Attributes:
        anchors: Operators after the gap, or one of the marks; several if stages are merged.
        candidates: Operators that may run in the gap, ascending.
        base_bytes: Kept storages and tangents alive in the gap, or at the last anchor if stages are merged.
        gap_limited: Whether the capacity can bind in the gap.
        anchor_limited: Whether it can bind at the last anchor.
    """

    anchors: tuple[int, ...]
    candidates: tuple[int, ...]
    base_bytes: int
    gap_limited: bool
    anchor_limited: bool


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """A problem as stages.

    Attributes:
        problem: The problem.
        index: Its graph as lists.
        stages: All stages, in order.
        skipped: Anchors before the first stage, whose gaps are empty.
        floating: Tangent-free operators that run, ascending; their first execution has no anchor.
        demanded: Those of `floating` that run whether or not anything reads them.
        entry: For each storage, the first stage in which it can be alive; -1 if it costs nothing or always the same.
        from_anchor: Whether an anchor makes each storage before `entry`, so that it can be retained from there.
        last: For each storage, the last stage that may read it; -1 for none.
        runs_until: Last gap in which each operator may run, by operator.
        made_at: Stage whose anchor executes an operator first, -1 for `skipped`; floating ones are left out.
        born: Storages that an anchor makes in the stage of their entry, before its last anchor.
    """

    problem: RematProblem
    index: StepIndex
    stages: tuple[Stage, ...]
    skipped: tuple[int, ...]
    floating: tuple[int, ...]
    demanded: tuple[int, ...]
    entry: tuple[int, ...]
    from_anchor: tuple[bool, ...]
    last: tuple[int, ...]
    runs_until: dict[int, int]
    made_at: dict[int, int]
    born: frozenset[int] = frozenset()

    @property
    def executions(self) -> int:
        """Executions to decide about."""
        return sum(len(stage.candidates) for stage in self.stages)

    def held(self, storage: int) -> bool:
        """Whether a tangent-free operator makes it for the caller, who holds the first instance to the end."""
        return self.entry[storage] >= 0 and self.index.kept[storage]

    def unsavable(self, storage: int) -> bool:
        """Whether it must not cross the boundary."""
        return is_unsavable(self.problem, self.index, storage)

    def state_bytes(self, op: int) -> int:
        """Bytes of the random state that repetitions of `op` replay; 0 if there is none."""
        replay = self.problem.graph.ops[op].replay
        return 0 if replay is None else self.problem.graph.storages[replay].size_bytes


def may_repeat(op: Op) -> bool:
    """Whether plans of the space may execute `op` more than once."""
    # An effect must happen once; drawing random numbers again is none if their state is replayed.
    replays = op.traits == {Trait.RANDOM} and op.replay is not None
    gathers = op.traits == {Trait.COLLECTIVE, Trait.GATHER}
    return op.phase is not Phase.BACKWARD and not is_pinned(op) and (not op.traits or replays or gathers)


def is_unsavable(problem: RematProblem, index: StepIndex, storage: int) -> bool:
    """Whether a storage must not be alive across the boundary."""
    maker = index.producer[storage]
    # The caller holds kept storages anyway, so the tag cannot forbid them to cross.
    tagged = maker >= 0 and problem.graph.ops[maker].save_policy is SavePolicy.MUST_NOT_SAVE
    return tagged and not index.kept[storage]
