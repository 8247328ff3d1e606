"""Bytes and symbolic sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import torch

CPU_ALIGNMENT_BYTES = 1
CUDA_ALIGNMENT_BYTES = 512
"""Granularity of the caching allocator on CUDA devices; the CPU allocator counts what is asked for."""
UNBACKED_FALLBACK = 4096
"""What torch's partitioner takes for a size that only the data decide."""


def allocated_bytes(value: torch.Tensor) -> int:
    """Bytes that the device's allocator hands out for the storage behind `value`; symbols take their hints."""
    try:
        nbytes = value.untyped_storage().nbytes()
    except NotImplementedError:
        nbytes = value.numel() * value.element_size()
    size = size_hint(nbytes)
    alignment = CUDA_ALIGNMENT_BYTES if value.device.type == "cuda" else CPU_ALIGNMENT_BYTES
    return -(-size // alignment) * alignment


_sizes: ContextVar[tuple[tuple[str, int], ...]] = ContextVar("remat_sizes", default=())


@contextmanager
def sizes_at(sizes: Mapping[str, int]) -> Iterator[None]:
    """Within the block symbols stand for these numbers rather than for those of the traced inputs.

    Args:
        sizes: Number of each symbol by its name; symbols without one keep their hints.
    """
    token = _sizes.set(tuple(sorted(sizes.items())))
    try:
        yield
    finally:
        _sizes.reset(token)


def size_hint(size: int | torch.SymInt) -> int:
    """The size in the inputs that are looked at (see `sizes_at`); what only the data decide counts as torch's fallback.

    Never puts a guard on a size.
    """
    if isinstance(size, int):
        return size
    number = symbol_hint(size)
    return int(number) if number is not None else UNBACKED_FALLBACK


def allocation_alignment(device_type: str) -> int:
    """Bytes to a multiple of which the device's allocator rounds what it is asked for."""
    return CUDA_ALIGNMENT_BYTES if device_type == "cuda" else CPU_ALIGNMENT_BYTES


def symbol_hint(value: torch.SymInt | torch.SymFloat | torch.SymBool) -> int | float | bool | None:
    """The number that a symbol stands for in the inputs that are looked at; None when only the data decide it.

    The length of a jagged dimension has none: it stands for as many numbers as the batch has rows.
    """
    node = value.node
    sizes = _sizes.get()
    if sizes and isinstance(value, torch.SymInt):
        number = _number_at(node.expr, sizes)
        if number is not None:
            return number
    hint: Any = node.hint if node.has_hint() else None
    return hint if isinstance(hint, (int, float, bool)) else None


@lru_cache(maxsize=65_536)
def _number_at(expression: Any, sizes: tuple[tuple[str, int], ...]) -> int | None:
    """An expression over symbols as a number; `None` where a symbol in it has none."""
    numbers = dict(sizes)
    symbols = expression.free_symbols
    if not all(symbol.name in numbers for symbol in symbols):
        return None
    return int(expression.xreplace({symbol: numbers[symbol.name] for symbol in symbols}))
