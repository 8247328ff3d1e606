"""Bytes and symbolic sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import torch

from remat_compiler.units import rounded_up

CPU_ALIGNMENT_BYTES = 1
CUDA_ALIGNMENT_BYTES = 512
"""Granularity of the caching allocators of CUDA and other accelerators; the CPU's counts the bytes as requested."""
UNBACKED_FALLBACK = 4096
"""Number that torch's partitioner assumes for a data-dependent size."""


def allocated_bytes(value: torch.Tensor) -> int:
    """Bytes that the device's allocator hands out for the storage of `value`; symbols take their hints."""
    # The storage may be larger than the value that is a view of it; sparse tensors have none.
    try:
        nbytes = value.untyped_storage().nbytes()
    except NotImplementedError:
        nbytes = value.numel() * value.element_size()
    size = size_hint(nbytes)
    return rounded_up(size, allocation_alignment(value.device.type))


_sizes: ContextVar[tuple[tuple[str, int], ...]] = ContextVar("remat_sizes", default=())


@contextmanager
def sizes_at(sizes: Mapping[str, int]) -> Iterator[None]:
    """Within the block symbols stand for these numbers rather than for those of the traced inputs.

    Args:
        sizes: Number of each symbol by its name; symbols without one keep their hints.
    """
    # A sorted tuple, which `number_at` can be cached by.
    token = _sizes.set(tuple(sorted(sizes.items())))
    try:
        yield
    finally:
        _sizes.reset(token)


def size_hint(size: int | torch.SymInt) -> int:
    """The size as a number (see `sizes_at`).

    Each data-dependent symbol in it stands for torch's fallback, or the bound that is known of it.  Never puts a guard
    on a size.
    """
    if isinstance(size, int):
        return size
    number = symbol_hint(size)
    return int(number) if number is not None else _assumed(size.node)


def memory_order(value: torch.Tensor) -> list[int]:
    """The dimensions of a dense value in the order in which they lie in memory, the outermost first."""
    strides = [size_hint(stride) for stride in value.stride()]
    return sorted(range(value.dim()), key=lambda dim: -strides[dim])


def _assumed(node: Any) -> int:
    """The number of a size of which parts depend on data."""
    # The length of a jagged dimension is no expression.
    expression = getattr(node, "expr", None)
    if expression is None:
        return UNBACKED_FALLBACK
    known, environment = dict(_sizes.get()), node.shape_env
    numbers = {}
    for symbol in expression.free_symbols:
        number = known.get(symbol.name)
        if number is None:
            hint = _hint_of(environment, symbol)
            number = _within_bounds(environment, symbol) if hint is None else hint
        numbers[symbol] = number
    found = expression.xreplace(numbers)
    # One symbol becomes a plain number.
    return int(found) if getattr(found, "is_number", True) else UNBACKED_FALLBACK


def _hint_of(environment: Any, symbol: Any) -> int | None:
    # The name differs between versions of torch.
    name = "backed_var_to_val" if hasattr(environment, "backed_var_to_val") else "var_to_val"
    hints = getattr(environment, name)
    return None if symbol not in hints else int(hints[symbol])


def _within_bounds(environment: Any, symbol: Any) -> int:
    """torch's fallback, as far as the bounds of a data-dependent symbol allow."""
    bounds = environment.var_to_range.get(symbol)
    number = UNBACKED_FALLBACK
    if bounds is not None:
        # An infinite bound is no integer of sympy's.
        number = max(number, int(bounds.lower)) if bounds.lower.is_Integer else number
        number = min(number, int(bounds.upper)) if bounds.upper.is_Integer else number
    return number


def allocation_alignment(device_type: str) -> int:
    """Bytes to a multiple of which the device's allocator rounds each request up."""
    return CPU_ALIGNMENT_BYTES if device_type in ("cpu", "meta") else CUDA_ALIGNMENT_BYTES


def symbol_hint(value: torch.SymInt | torch.SymFloat | torch.SymBool) -> int | float | bool | None:
    """The number that a symbol stands for (see `sizes_at`); None if it is data-dependent.

    The length of a jagged dimension has none: it stands for as many numbers as the batch has rows.
    """
    node = value.node
    sizes = _sizes.get()
    # Floats and truth values of sizes keep their hints: the expressions that are evaluated here are whole numbers.
    if sizes and isinstance(value, torch.SymInt):
        number = number_at(node.expr, sizes)
        if number is not None:
            return number
    # The hint of a jagged dimension is a symbol again.
    hint: Any = node.hint if node.has_hint() else None
    return hint if isinstance(hint, (int, float, bool)) else None


def sizes_now() -> tuple[tuple[str, int], ...]:
    """The numbers that symbols stand for, as `number_at` takes them (see `sizes_at`)."""
    return _sizes.get()


@lru_cache(maxsize=65_536)
def number_at(expression: Any, sizes: tuple[tuple[str, int], ...]) -> int | None:
    """An expression over symbols as a number; `None` if a symbol in it has none."""
    numbers = dict(sizes)
    symbols = expression.free_symbols
    if not all(symbol.name in numbers for symbol in symbols):
        return None
    return int(expression.xreplace({symbol: numbers[symbol.name] for symbol in symbols}))
