"""Bytes as a person reads them, and as allocators round them."""

from __future__ import annotations

from decimal import Decimal


def format_bytes(num_bytes: int) -> str:
    """`num_bytes` as a person reads it, in binary units: ``"18.2 MiB"``."""
    if abs(num_bytes) < 1024:
        return f"{num_bytes} B"
    size = float(num_bytes)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        # Rounded before it is compared, so that 1023.96 KiB reads as 1.0 MiB, never as 1024.0 KiB.
        if round(abs(size), 1) < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def written(num_bytes: int) -> str:
    """The least budget of at least `num_bytes` in few digits, as options take it: ``"3.25GiB"``."""
    for unit, size, parts in (("GiB", 2**30, 100), ("MiB", 2**20, 10), ("KiB", 2**10, 10)):
        if num_bytes >= size:
            count = -(-num_bytes * parts // size)
            return f"{str(count / parts).removesuffix('.0')}{unit}"
    return f"{num_bytes}B"


def told_apart(*sizes: int) -> tuple[str, ...]:
    """`format_bytes` of each of the `sizes`, with exact bytes besides if different ones would read the same."""
    texts = [format_bytes(size) for size in sizes]
    if len(set(texts)) == len(set(sizes)):
        return tuple(texts)
    return tuple(text if abs(size) < 1024 else f"{text} ({size} bytes)" for text, size in zip(texts, sizes))


def counted(count: int, noun: str) -> str:
    """A count with its noun: ``"1 call"``, ``"3 calls"``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def rounded_up(count: int, step: int) -> int:
    """The least multiple of `step` that is not below `count`."""
    return -(-count // step) * step


def part_of(fraction: float, num_bytes: int) -> int:
    """A fraction of some bytes, rounded down; by decimals, so that 0.29 of 100 is 29, not the 28 of binary ones."""
    return int(Decimal(repr(fraction)) * num_bytes)
