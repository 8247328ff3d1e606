"""Local search over policies: change the action of one value, or of several at once, and keep what is better."""

from __future__ import annotations

import numpy as np

from remat_passes.policies.decode import OVER, rank
from remat_passes.policies.policy import Policies
from remat_passes.sequences.jit import compiled, inner
from remat_passes.sequences.profile import SIZE, IntArray

LOOSE = 8
"""At first, a change is accepted that makes the policy slower by one part in `LOOSE` of the best one's added time; at
the end none is."""
TURN = 40
"""Changes without a better policy after which the search goes back to the best one."""
PATIENCE = 2
"""The search ends when one part in so many of all its changes went by without a better policy."""
MANY, WIDEST = 8, 6
"""Values of groups of at least `MANY` change together half of the time: 2, 4, ..., or ``2 ** WIDEST`` of them."""
NEAR = 3
"""How many values apart neighbours are at most."""


@compiled
def climb(p: Policies, actions: IntArray, draws: IntArray, most: int) -> tuple[IntArray, int, int]:
    """A policy at least as good as `actions`.

    First runs of equal values of several layers, then value by value, the largest first, until no change of one value
    helps; then changes at random.

    Args:
        p: What is searched.
        actions: Where to begin.
        draws: Random numbers from 0 on, in rows of four: one row for each change at random.
        most: Largest number of policies that are evaluated.

    Returns:
        The policy, its rank (see `decode.rank`), and the number of policies evaluated.
    """
    best, best_rank, done = actions.copy(), rank(p, actions), 1
    if len(actions) == 0:
        return best, best_rank, done
    # From many layers at once to single values.
    width = p.group_sizes.max()
    while width >= MANY // 2:
        best, best_rank, done = _run_by_run(p, best, best_rank, done, most, width)
        width //= 3
    best, best_rank, done = _one_by_one(p, best, best_rank, done, most)
    here, here_rank, idle = best.copy(), best_rank, 0
    # The last turn over all values wants some, too.
    last = most - min(2 * len(actions), most // 3)
    for turn in range(len(draws)):
        if done >= last or best_rank == 0 or idle > most // PATIENCE:
            break
        row = draws[turn]
        changed = here.copy()
        v = row[1] % len(actions)
        if p.group_sizes[p.alike[v]] >= MANY and row[3] % 2 == 0:
            _change_alike(p, changed, v, row[1] // len(actions), 2 << row[2] % WIDEST)
        else:
            _change_some(p, changed, row)
        new_rank = rank(p, changed)
        done += 1
        idle += 1
        if new_rank < best_rank:
            best, best_rank, idle = changed.copy(), new_rank, 0
        slack = 0 if here_rank >= OVER else best_rank // LOOSE * (most - done) // most
        if new_rank <= here_rank + slack:
            here, here_rank = changed, new_rank
        elif idle % TURN == 0:
            here, here_rank = best.copy(), best_rank
    return _one_by_one(p, best, best_rank, done, most)


@inner
def _run_by_run(
    p: Policies, actions: IntArray, known: int, done: int, most: int, width: int
) -> tuple[IntArray, int, int]:
    """`actions` with the best action for each run of `width` values of a group, tried once; rank and count."""
    for group in range(len(p.group_sizes)):
        members = np.flatnonzero(p.alike == group)
        for low in range(0, len(members) if len(members) >= MANY else 0, width):
            run = members[low : low + width]
            for action in range(3):
                if done >= most:
                    return actions, known, done
                changed = actions.copy()
                for v in run:
                    if p.allowed[v, action]:
                        changed[v] = action
                if (changed == actions).all():
                    continue
                new = rank(p, changed)
                done += 1
                if new < known:
                    actions, known = changed, new
    return actions, known, done


@inner
def _one_by_one(p: Policies, actions: IntArray, known: int, done: int, most: int) -> tuple[IntArray, int, int]:
    """`actions`, changed in place, with the best action for each value, those of the others given; rank and count.

    `known` is the rank of `actions`, and `done` policies were evaluated.
    """
    order = np.argsort(-p.g.storages[:, SIZE].copy()[p.values], kind="mergesort")
    changed = True
    while changed and known > 0:
        changed = False
        for v in order:
            before = actions[v]
            for action in range(3):
                if done >= most:
                    return actions, known, done
                if action == before or action == actions[v] or not p.allowed[v, action]:
                    continue
                old = actions[v]
                actions[v] = action
                new = rank(p, actions)
                done += 1
                if new < known:
                    known, changed = new, True
                else:
                    actions[v] = old
    return actions, known, done


@inner
def _change_some(p: Policies, actions: IntArray, row: IntArray) -> None:
    """Other actions for one value, two, or three: what one gives up of memory, another may take.

    Half of them are neighbours, of which one is often made of the other.
    """
    count, near = len(actions), row[0] // 3 % 2 == 1
    for k in range(1 + row[0] % 3):
        v = row[k + 1] % count
        if near and k > 0:
            v = (row[1] % count + row[k + 1] % (2 * NEAR + 1) - NEAR) % count
        actions[v] = _other(p, v, actions[v], row[k + 1] // count)


@inner
def _change_alike(p: Policies, actions: IntArray, v: int, number: int, most: int) -> None:
    """Another action for `v` and for those of its group after it that have the same one, `most` at most.

    So the same value of several layers changes at once.
    """
    old, new, count = actions[v], _other(p, v, actions[v], number), 0
    for w in range(v, len(actions)):
        if p.alike[w] == p.alike[v] and actions[w] == old and p.allowed[w, new] and count < most:
            actions[w] = new
            count += 1


@inner
def _other(p: Policies, v: int, action: int, number: int) -> int:
    """Another action that value `v` may have, or the same if it has no other."""
    for k in range(2):
        new = (action + 1 + (number + k) % 2) % 3
        if p.allowed[v, new]:
            return new
    return action
