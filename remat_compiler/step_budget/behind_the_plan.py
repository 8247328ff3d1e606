"""Warn if operators that Dynamo left to eager behind the planned graphs may make a step exceed its budget.

    planned forwards ─ eager loss ─│─ eager backward ─ planned backwards
                         saved  ►  │  gradients  ►
                 held by planned graphs  ►

As a backward begins, all that eager operators saved is there beside what the planned graphs hold, and the gradients of
these operators come on top.  A backward that begins within another one, as of a reentrant checkpoint, also runs beside
what the outer one has not released.  What eager operators in front of the graphs compute again in their backward, as in
a checkpointed region, is known by measuring it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from remat_compiler import torch_compat
from remat_compiler.options import RematOptions
from remat_compiler.step_budget.beside_the_plan import Outside
from remat_compiler.step_budget.compiled_graph import CompiledGraph
from remat_compiler.step_budget.coordinator import share_budget
from remat_compiler.watching.open_calls import OpenCall

OpenCalls = Callable[[], Mapping[int, OpenCall[CompiledGraph]]]
"""The calls of planned graphs in this thread whose backward has not run; see `open_calls.Here`."""
_ALL = -1
"""Stands for the number of nodes behind the graphs where none of them waits for its backward."""


class BehindThePlan:
    """Looks at each backward that begins while planned graphs wait for theirs.

    Args:
        open_calls: The calls that wait.
    """

    def __init__(self, open_calls: OpenCalls) -> None:
        self._open_calls = open_calls
        torch_compat.follow_backward_starts(self._starts)

    def _starts(self, roots: torch_compat.Roots, outer: Sequence[torch_compat.Roots]) -> torch_compat.Ends | None:
        calls = tuple(self._open_calls().values())
        if not calls:
            return None
        # Results that nobody trained are gone by now, and so is what their graphs held for them.
        alive = ((one, node) for one in reversed(calls) if (node := one.node()) is not None)
        last, latest = next(alive, (calls[-1], None))
        graph = last.graph
        beside, budget = graph.beside, graph.options.memory_budget
        if beside is None:
            return None
        if graph.gradients is not None and graph.gradients.appear(graph):
            for one in calls:
                one.graph.look_again()
        memory = last.memory
        # As much work behind the graphs as in a step that was looked at, at the same sizes, is no news.
        behind = _ALL if latest is None else torch_compat.nodes_behind(latest, roots)
        kind = behind, 0 if memory is None else memory.held_bytes
        if not beside.is_new_behind(kind):
            return None
        eager = torch_compat.eager_backward(roots)
        held_bytes, in_front = self._held(graph.options)
        if held_bytes is not None and eager.peak_bytes:
            beside.say_behind(eager.peak_bytes, held_bytes + in_front, of_part=budget.is_part)
        if outer:
            # What the same operators hold for several backwards counts once.
            saved = torch_compat.saved_before([root for roots in outer for root in roots])
            beside.say(Outside(eager_bytes=saved), None, of_part=budget.is_part)
        # In the first one, operators may be measured that run for the first time.
        if outer or held_bytes is None or beside.told or beside.behind[kind] != 2:
            return None
        saved_bytes, left_bytes = held_bytes + in_front, None if memory is None else memory.left_bytes
        in_eager = latest is not None and torch_compat.runs_eager_before(latest)
        if not in_eager and not eager.peak_bytes:
            return None

        def ends(first_bytes: int, last_bytes: int) -> None:
            beside.say_behind(first_bytes, saved_bytes, of_part=budget.is_part)
            if len(calls) == 1 and in_eager:
                beside.say(Outside(more_at_end=last_bytes), left_bytes, of_part=budget.is_part)

        return ends

    def _held(self, options: RematOptions) -> tuple[int | None, int]:
        """Bytes that the open calls which share a budget hold, `None` if not known, and eager operators before them."""
        held_bytes, calls = 0, Counter[CompiledGraph]()
        for one in tuple(self._open_calls().values()):
            made = one.node()
            if made is None or not share_budget(one.graph.options, options):
                continue
            memory = one.memory
            if memory is None:
                return None, 0
            outputs = torch_compat.outputs_of(made)
            gone = outputs is not None and all(one.expired() for one in outputs)
            held_bytes += memory.held_bytes - (memory.released_bytes if gone else 0)
            calls[one.graph] += 1
        return held_bytes, sum(graph.outside.eager_of(count) for graph, count in calls.items())
