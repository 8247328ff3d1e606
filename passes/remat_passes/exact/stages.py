"""Build the `Space` of a problem: where everything may run and live, and which stages stay."""

from __future__ import annotations

from remat_compiler.ir.graph import Phase, StorageKind
from remat_compiler.ir.problem import RematProblem
from remat_passes.exact.space import (
    BOUNDARY,
    END,
    PAUSE,
    OutsideSpace,
    Reductions,
    Space,
    Stage,
    is_unsavable,
    may_repeat,
)
from remat_passes.sequences.sequence import StepIndex


def space_of(problem: RematProblem, reductions: Reductions, passes_per_gap: int = 1) -> Space:
    """The space of `problem`.

    Raises:
        OutsideSpace: A tangent-free operator may replay a random state, which the space cannot express.
    """
    return _Builder(problem, reductions, passes_per_gap).build()


class _Builder:
    """Finds where everything may run and live, then merges stages."""

    def __init__(self, problem: RematProblem, reductions: Reductions, passes_per_gap: int) -> None:
        self.problem = problem
        self.reductions = reductions
        self.index = StepIndex.of(problem.graph)
        self.ops = problem.graph.ops
        self.floating = self._find_floating()
        self.demanded = [i for i in self.floating if self.index.demanded[i]]
        marks: list[int] = [op.id for op in self.ops if op.phase is Phase.FORWARD]
        marks += [
            BOUNDARY,
            *(op.id for op in self.ops if op.phase is Phase.BACKWARD),
            # Demanded operators that nothing reads may run last of all, in a gap after the last backward operator.
            *([END] if self.demanded else []),
        ]
        # A pause runs nothing: it only splits the gap before a mark, so that operators may run once in each part.
        pauses = [PAUSE] * (passes_per_gap - 1)
        self.anchors = [anchor for mark in marks for anchor in (*pauses, mark)]
        self.boundary = self.anchors.index(BOUNDARY)
        self.stage_of = {op: t for t, op in enumerate(self.anchors) if op >= 0}
        self.constant = [self._is_constant(s) for s in range(len(self.index.producer))]
        self.entry, self.from_anchor, self.runs_from = self._find_entries()
        self.last, self.runs_until = self._find_ends()

    def _find_floating(self) -> list[int]:
        """Tangent-free operators that must run, or whose results reach an operator that runs."""
        tangent_free = [op.id for op in self.ops if op.phase is Phase.TANGENT_FREE]
        needed: set[int] = {i for i in tangent_free if self.index.demanded[i]}
        stack: list[int] = [*(op.id for op in self.ops if op.phase is Phase.BACKWARD), *sorted(needed)]
        while stack:
            for storage in self.index.reads[stack.pop()]:
                maker = self.index.producer[storage]
                if maker >= 0 and self.ops[maker].phase is Phase.TANGENT_FREE and maker not in needed:
                    needed.add(maker)
                    stack.append(maker)
        for i in sorted(needed):
            # A state lives from its operator's first execution on: an anchor, which floating operators do not have.
            if may_repeat(self.ops[i]) and self.ops[i].replay is not None:
                raise OutsideSpace(f"{self.ops[i].name} is tangent-free and may replay a random state")
        return sorted(needed)

    def _is_constant(self, storage: int) -> bool:
        """Whether no choice changes the bytes of a storage: it is there once its anchor ran, kept or of no size."""
        # Made in a gap, if at all, so when it is alive is a choice.
        if self.index.producer[storage] not in self.stage_of:
            return False
        # A storage without bytes that must not cross the boundary still restricts the plan, so it stays a choice.
        weightless = self.index.size_bytes[storage] == 0 and not is_unsavable(self.problem, self.index, storage)
        return self.index.kept[storage] or weightless

    def _find_entries(self) -> tuple[list[int], list[bool], dict[int, int]]:
        """First stage of each storage, whether an anchor makes it, and first gap of each operator."""
        entry, from_anchor = [-1] * len(self.constant), [False] * len(self.constant)
        runs_from: dict[int, int] = {}
        floating = set(self.floating)
        for op in self.ops:
            if op.id in self.stage_of:
                # An anchor's results come into the gap after it; while it runs, they count as its own bytes.
                runs_from[op.id] = self.stage_of[op.id] + 1
            elif op.id in floating:
                # It may run in the gap of its latest maker, after it: operators of a gap stand in joint order.
                makers = (self.index.producer[s] for s in self.index.reads[op.id])
                runs_from[op.id] = max((runs_from[m] for m in makers if m >= 0), default=0)
            else:
                continue
            for s in self.index.writes[op.id]:
                if not self.constant[s]:
                    entry[s], from_anchor[s] = runs_from[op.id], op.id in self.stage_of
        return entry, from_anchor, runs_from

    def _find_ends(self) -> tuple[list[int], dict[int, int]]:
        """Last stage that may read each storage, and last gap of each operator that may run in gaps."""
        last = [-1] * len(self.constant)
        runs_until: dict[int, int] = {}
        final = len(self.anchors) - 1
        # Readers stand after makers: in reverse, all readers of a result are settled before its maker.
        for op in reversed(self.ops):
            if op.id not in self.runs_from:
                continue
            wanted = max((last[s] for s in self.index.writes[op.id] if not self.constant[s]), default=-1)
            if op.id in self.stage_of:
                until = wanted if may_repeat(op) else -1
            else:
                # What must run in any case may be put off to the last gap.
                until = final if self.index.demanded[op.id] else wanted
            # Otherwise no gap is left in which a repetition would serve anyone.
            if until >= self.runs_from[op.id]:
                runs_until[op.id] = until
            for s in self.index.reads[op.id]:
                last[s] = max(last[s], until, self.stage_of.get(op.id, -1))
        for s in range(len(last)):
            # The caller holds it to the end of the step.
            if self.entry[s] >= 0 and self.index.kept[s]:
                last[s] = final
        return last, runs_until

    def build(self) -> Space:
        """The space, merged as the reductions say."""
        candidates: list[list[int]] = [[] for _ in self.anchors]
        for i in sorted(self.runs_until):
            for t in range(self.runs_from[i], self.runs_until[i] + 1):
                candidates[t].append(i)
        bases = self._bases()
        gap_most, anchor_most = self._most(candidates, bases)
        low, high = self._range(gap_most, anchor_most)
        if self.reductions.merge_prefix:
            # Everything fits up to here, so results of the merged anchors are retained instead of recomputed.
            candidates[low] = [i for i in candidates[low] if i not in self.stage_of]
        budget, keep = self.problem.budget_bytes, not self.reductions.drop_slack_rows
        stages = tuple(
            Stage(
                tuple(self.anchors[high:]) if t == high else (self.anchors[t],),
                tuple(candidates[t]),
                bases[t],
                # The merged ends get no rows even where slack rows are wanted: each of their gaps stands for several.
                gap_limited=gap_most[t] > budget or (keep and t not in (low, high)),
                anchor_limited=anchor_most[t] > budget or (keep and t < high and self.anchors[t] >= 0),
            )
            for t in range(low, high + 1)
        )
        # Storages that die in the merged prefix, or enter after the merged suffix began, leave the program.
        there = [low <= last and entry <= high for entry, last in zip(self.entry, self.last)]
        return Space(
            self.problem,
            self.index,
            stages,
            tuple(self.anchors[:low]),
            tuple(self.floating),
            tuple(self.demanded),
            tuple(max(t, low) - low if t >= 0 and ok else -1 for t, ok in zip(self.entry, there)),
            tuple(self.from_anchor),
            tuple(min(t, high) - low if ok else -1 for t, ok in zip(self.last, there)),
            {i: min(t, high) - low for i, t in self.runs_until.items() if t >= low},
            {i: max(min(t, high) - low, -1) for i, t in self.stage_of.items()},
        )

    def _bases(self) -> list[int]:
        """Bytes in each gap that no choice changes."""
        storages = self.problem.graph.storages
        tangents = sum(s.size_bytes for s in storages if s.kind is StorageKind.TANGENT)
        bases: list[int] = []
        base = 0
        for anchor in self.anchors:
            bases.append(base)
            # Autograd holds the tangents from the boundary to the end of the step.
            if anchor == BOUNDARY:
                base += tangents
            elif anchor >= 0:
                base += sum(self.index.size_bytes[s] for s in self.index.writes[anchor] if self.constant[s])
        return bases

    def _most(self, candidates: list[list[int]], bases: list[int]) -> tuple[list[int], list[int]]:
        """Most bytes that may be alive in each gap, and at each anchor; 0 if nothing runs there."""
        # Differences of the bytes from stage to stage, as if everything lived as long as it may.
        change = [0] * (len(self.anchors) + 1)
        for s, (entry, last) in enumerate(zip(self.entry, self.last)):
            if 0 <= entry <= last:
                change[entry] += self.index.size_bytes[s]
                change[last + 1] -= self.index.size_bytes[s]
        for op in self.ops:
            # A random state is allocated only for operators that run again.
            if op.replay is not None and op.id in self.stage_of and op.id in self.runs_until:
                change[self.stage_of[op.id]] += self.problem.graph.storages[op.replay].size_bytes
                change[self.runs_until[op.id] + 1] -= self.problem.graph.storages[op.replay].size_bytes
        gaps: list[int] = []
        anchors: list[int] = []
        alive = 0
        for t, anchor in enumerate(self.anchors):
            alive += change[t]
            # Operators of a gap run one after the other, so the largest of them counts.
            busiest = max((self._transient(i) for i in candidates[t]), default=-1)
            gaps.append(bases[t] + alive + busiest if busiest >= 0 else 0)
            anchors.append(bases[t] + alive + self._transient(anchor) if anchor >= 0 else 0)
        return gaps, anchors

    def _transient(self, op: int) -> int:
        """Bytes that one execution makes and needs, at most."""
        made = sum(self.index.size_bytes[s] for s in self.index.writes[op])
        replay = self.ops[op].replay
        state = 0 if replay is None else self.problem.graph.storages[replay].size_bytes
        return made + self.problem.costs.workspace_bytes[op] + state

    def _range(self, gap_most: list[int], anchor_most: list[int]) -> tuple[int, int]:
        """First and last stage that stay; see the module docstring."""
        budget = self.problem.budget_bytes
        low, high = 0, len(self.anchors) - 1
        if self.reductions.merge_prefix:
            # Invariant: gaps 0 to low and the anchors before stage low fit, whatever is retained there.
            while low < self.boundary and anchor_most[low] <= budget and gap_most[low + 1] <= budget:
                low += 1
            # The loop looks one gap ahead and never at gap 0 itself.
            if gap_most[0] > budget:
                low = 0
        if self.reductions.merge_suffix:
            # The suffix begins after the boundary at the earliest: values that must not be saved are forbidden at a
            # stage's start.
            while high > self.boundary + 1 and max(gap_most[high - 1], anchor_most[high - 1]) <= budget:
                high -= 1
            # The loop looks one stage back and never at the last one itself.
            if max(gap_most[-1], anchor_most[-1]) > budget:
                high = len(self.anchors) - 1
        return low, high
