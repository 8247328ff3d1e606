"""Gradients that the backward of one call hands to that of another."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

from remat_compiler.step_model.events import BACKWARDS, Call, Event, Passed, missing_backwards


def is_awaited(passed: Passed, calls: Sequence[Call], held: Collection[int]) -> bool:
    """Whether one of the `held` calls still needs the gradient `passed`, or adds its own to it."""
    # The gradient of another call's output waits for that call's backward alone.
    if passed.to is not None:
        return passed.to in held
    return any(other.to is None and other.value == passed.value >= 0 for call in held for other in calls[call].passed)


def handed_on(calls: Sequence[Call], turns: Sequence[Event]) -> dict[int, tuple[Passed, ...]]:
    """For each graph, the gradients that the next backward takes over at once in all of its calls, so that none waits.

    Args:
        calls: The calls in order.
        turns: What happens, in order, see `whole_step_peak`.
    """
    backwards = [call for turn, call in (*turns, *missing_backwards(calls, turns)) if turn in BACKWARDS]
    following = dict(pairwise(backwards))
    behind = {call: backwards[place + 1 :] for place, call in enumerate(backwards)}
    found: dict[int, tuple[Passed, ...]] = {}
    for i, call in enumerate(calls):
        at_once = [
            passed
            for passed in call.passed
            if passed.to == following.get(i) or (passed.to is None and not is_awaited(passed, calls, behind.get(i, ())))
        ]
        # One graph has one answer for all of its calls: an argument counts only if no call's gradient has to wait.
        arguments = {passed.argument for passed in at_once}
        before = found.get(call.graph)
        kept = at_once if before is None else [passed for passed in before if passed.argument in arguments]
        found[call.graph] = tuple(kept)
    return found
