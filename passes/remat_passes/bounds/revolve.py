"""The fewest repetitions that reverse a uniform chain with few checkpoints: the binomial optimum of Revolve.

A chain of `length` equal steps is reversed: step k's backward needs the state before step k.  `slots` states can be
held, the initial one included.  With ``beta(s, t) = binomial(s + t, s)``, and t the number with
``beta(s, t - 1) < length <= beta(s, t)``, the fewest executions of steps are

    executions = t * length - beta(s + 1, t - 1)

(Griewank and Walther, ACM TOMS 26(1), 2000, Proposition 1 with Lemma 1).  That counts the steps that advance the state;
a step that is executed within its own backward is not counted, as there.
"""

from __future__ import annotations

from math import comb


def fewest_executions(length: int, slots: int) -> int:
    """Fewest executions of steps to reverse a chain.

    Args:
        length: Steps of the chain, at least 0.
        slots: States that can be held, the initial one included, at least 1.

    Raises:
        ValueError: No chain is reversed without a slot, or the length is negative.
    """
    if length < 0 or slots < 1:
        raise ValueError(f"got length {length} and {slots} slots; a chain needs length >= 0 and at least 1 slot")
    if length == 0:
        return 0
    repetition = 0
    # The least t with length <= beta(s, t), where beta(s, t) = comb(s + t, s).
    while comb(slots + repetition, slots) < length:
        repetition += 1
    # beta(s + 1, t - 1) = comb(s + t, s + 1), which is 0 for t = 0.
    return repetition * length - (comb(slots + repetition, slots + 1) if repetition else 0)


def fewest_repetitions(length: int, slots: int) -> int:
    """Executions beyond the one of each step but the last, which a chain that holds every state needs too."""
    return fewest_executions(length, slots) - max(length - 1, 0)
