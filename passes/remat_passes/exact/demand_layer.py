"""One layer of the search over demanded sets: a table of states, and the loops that fill and thin it.

A state is a set of bits with the least price found for it.  The states of one layer stand in arrays, as found; a
hash table with open addressing finds a set among them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from remat_passes.exact.demands import IntArray, Words
from remat_passes.sequences.jit import compiled, inner

Slots = npt.NDArray[np.int32]

FULL = -1
"""Returned instead of a number of states: the arrays are full."""


@inner
def _bytes_of(words: Words, weight: IntArray) -> int:
    """Weight of all bits that are set."""
    total = 0
    for k in range(len(words)):
        # Only bits that are set cost time: the lowest is taken off until none is left.
        word = words[k]
        while word != np.uint64(0):
            low = word & (~word + np.uint64(1))
            total += weight[k * 64 + _position(low)]
            word ^= low
    return total


@inner
def _position(low: np.uint64) -> int:
    """Position of the one bit that is set."""
    position = 0
    shift = np.uint64(32)
    for _ in range(6):
        # Halve the range: 32, 16, ... 1.
        if low >> shift:
            low = low >> shift
            position += np.int64(shift)
        shift = shift >> np.uint64(1)
    return position


@inner
def _slot(keys: Words, table: Slots, key: Words) -> int:
    """Slot of `key` in `table`, or the empty one where it belongs."""
    # Products of half words, since plain Python warns of any that overflow.
    mixed, half = np.uint64(0), np.uint64(0xFFFFFFFF)
    for k in range(len(key)):
        mixed ^= key[k]
        mixed = (mixed & half) * np.uint64(0x9E3779B1) ^ (mixed >> np.uint64(32)) * np.uint64(0x85EBCA77)
        mixed ^= mixed >> np.uint64(29)
        mixed = (mixed & half) * np.uint64(0xC2B2AE3D) ^ (mixed >> np.uint64(32)) * np.uint64(0x27D4EB2F)
        mixed ^= mixed >> np.uint64(31)
    # The table's length is a power of two, and more than twice the states that fit: an empty slot is near.
    mask = len(table) - 1
    slot = int(np.int64(mixed & np.uint64(mask)))
    while table[slot] >= 0:
        same = True
        for k in range(len(key)):
            same = same and keys[table[slot], k] == key[k]
        if same:
            return slot
        slot = (slot + 1) & mask
    return slot


@inner
def _insert(
    keys: Words, price: IntArray, origin: Slots, made_by: Slots, table: Slots, count: int,
    key: Words, cost: int, source: int, op: int,
) -> int:  # fmt: skip
    """Add a state, or lower its price; the new number of states, or `FULL`."""
    slot = _slot(keys, table, key)
    at = table[slot]
    if at < 0:
        if count >= len(price):
            return FULL
        at = count
        table[slot] = at
        keys[at] = key
        count += 1
    # Of equal prices the first found stays, in any process.
    elif price[at] <= cost:
        return count
    price[at], origin[at], made_by[at] = cost, source, op
    return count


@compiled
def pass_anchor(
    before: Words, prices: IntArray, into: tuple[Words, IntArray, Slots, Slots], table: Slots,
    clears: Words, reads: Words, needs: Words, room: int, weight: IntArray,
) -> int:  # fmt: skip
    """Fill a layer with the states that those of another become at an anchor; the number of states, or `FULL`.

    Args:
        before: The states, one row of words each.
        prices: Their prices.
        into: Arrays to be filled: states, prices, origin of each, and the operator that ran (-1 for none).
        table: Slots for the new layer, all -1.
        clears: See `DemandSteps`, as are the rest.
        reads: Bits needed.
        needs: Bits that must be set.
        room: Bytes that may be alive.
        weight: Bytes of each bit.
    """
    keys, price, origin, made_by = into
    count = 0
    key = np.empty(before.shape[1], np.uint64)
    for j in range(len(prices)):
        fits = True
        # Walking backwards: what the anchor makes is demanded no more before it, what it reads is.
        for k in range(len(key)):
            fits = fits and needs[k] & ~before[j, k] == np.uint64(0)
            key[k] = (before[j, k] & ~clears[k]) | reads[k]
        if not fits or _bytes_of(key, weight) > room:
            continue
        count = _insert(keys, price, origin, made_by, table, count, key, prices[j], j, -1)
        if count == FULL:
            return FULL
    return count


@compiled
def run_in_gap(
    into: tuple[Words, IntArray, Slots, Slots], table: Slots, count: int,
    op: int, writes: Words, reads: Words, needs: Words, keeps: Words, room: int, time: int, most: int, weight: IntArray,
) -> int:  # fmt: skip
    """Add the states that those of a layer become if `op` runs; the number of states, or `FULL`.

    Args:
        into: See `pass_anchor`.
        table: See `pass_anchor`.
        count: States of the layer so far.
        op: The operator.
        writes: See `DemandSteps`, as are those not named here.
        reads: Bits needed.
        needs: Bits that must be set.
        keeps: Bits that may also stay set.
        room: Bytes that may be alive.
        time: Price of running.
        most: Largest price of interest.
        weight: Bytes of each bit.
    """
    keys, price, origin, made_by = into
    key = np.empty(keys.shape[1], np.uint64)
    # The range is that of the call: a state added here does not run `op` again in the same pass.
    for j in range(count):
        useful, fits, held, rest = False, price[j] + time <= most, False, False
        for k in range(len(key)):
            hit = keys[j, k] & writes[k]
            useful = useful or hit != np.uint64(0)
            held = held or hit & keeps[k] != np.uint64(0)
            rest = rest or hit & ~keeps[k] != np.uint64(0)
            fits = fits and needs[k] & ~keys[j, k] == np.uint64(0)
        # A run that makes nothing demanded would cost time for nothing.
        if not useful or not fits:
            continue
        # Held bits leave two choices: this is the first execution, which makes them, or a later one, which leaves them.
        # A later one is worth its time only if it makes something else, too.
        for kept in range(2 if held and rest else 1):
            for k in range(len(key)):
                stays = keys[j, k] & keeps[k] if kept else np.uint64(0)
                key[k] = (keys[j, k] & ~writes[k]) | reads[k] | stays
            if _bytes_of(key, weight) > room:
                continue
            count = _insert(keys, price, origin, made_by, table, count, key, price[j] + time, j, op)
            if count == FULL:
                return FULL
    return count


@compiled
def worth_keeping(
    keys: Words, price: IntArray, table: Slots, count: int, forbidden: Words, most: int, loose: int, weight: IntArray,
    behind: Words, ahead: Words, float_ns: IntArray, bound: IntArray,
) -> npt.NDArray[np.bool_]:  # fmt: skip
    """Which states of a layer to go on with; writes into `bound` the least price of a plan through each.

    Dropped are states with a forbidden bit, states from which no plan of at most `most` can follow, and states that the
    layer also has with one or two loose bits fewer at no higher price.

    Args:
        keys: States of the layer.
        price: Their prices.
        table: Their slots.
        count: How many there are.
        forbidden: See `DemandSteps`, as are those not named here.
        most: Largest price of interest.
        loose: See `DemandSteps`.
        weight: Bytes of each bit.
        behind: By bit, tangent-free operators that have to run for it.
        ahead: Tangent-free operators that have to run in any case.
        float_ns: Their times.
        bound: To be filled.
    """
    stays = np.zeros(count, np.bool_)
    floats = np.empty(behind.shape[1], np.uint64)
    key = np.empty(keys.shape[1], np.uint64)
    bits = np.empty(len(weight), np.int64)
    for j in range(count):
        fits = True
        for k in range(len(key)):
            key[k] = keys[j, k]
            fits = fits and key[k] & forbidden[k] == np.uint64(0)
        if not fits:
            continue
        # Operators that have to run: for anchors before this stage, and for each demanded bit.
        floats[:] = ahead
        found, bare = 0, 0
        for k in range(len(key)):
            word = key[k]
            while word != np.uint64(0):
                low = word & (~word + np.uint64(1))
                bits[found] = k * 64 + _position(low)
                floats |= behind[bits[found]]
                # Bits ascend and the loose ones are lowest, so they fill the front of `bits`.
                bare += bits[found] < loose
                found += 1
                word ^= low
        # All of them run at least once more, since nothing before this point has been charged.
        bound[j] = price[j] + _bytes_of(floats, float_ns)
        if bound[j] > most:
            continue
        stays[j] = not _is_dominated(keys, price, table, key, price[j], bits[:bare])
    return stays


@inner
def _is_dominated(keys: Words, price: IntArray, table: Slots, key: Words, cost: int, bits: IntArray) -> bool:
    """Whether the layer has `key` without one or two of `bits` at no higher price."""
    # All subsets would be too many; one or two bits fewer catch most, and dropping less is never wrong.
    one = np.uint64(1)
    for a in range(len(bits)):
        # Bits are flipped in place and flipped back, so that `key` is whole again for the next try.
        key[bits[a] // 64] ^= one << np.uint64(bits[a] % 64)
        at = table[_slot(keys, table, key)]
        better = at >= 0 and price[at] <= cost
        for b in range(a + 1, len(bits)):
            if better:
                break
            key[bits[b] // 64] ^= one << np.uint64(bits[b] % 64)
            at = table[_slot(keys, table, key)]
            better = at >= 0 and price[at] <= cost
            key[bits[b] // 64] ^= one << np.uint64(bits[b] % 64)
        key[bits[a] // 64] ^= one << np.uint64(bits[a] % 64)
        if better:
            return True
    return False
