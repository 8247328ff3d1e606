"""The operators that a rewritten graph moves values with, known to torch as ``remat::...``.

    handle = offload(x, place)                    begins to copy x; the handle stands for what is off the device
    offloaded(handle, x)                          waits for that copy: x may be freed from here on
    value, ticket = prefetch(handle, ...)         allocates, and begins to copy back
    fetch(value, ticket)                          waits for that copy: value is what x was

Nothing is freed inside an operator, and none returns memory that it was given, so the graph alone decides how long
memory lives, and a run on fake tensors sees all of it.  `offloaded` and `fetch` are declared to change their first
argument, which keeps them in their place.

Handles and tickets are small tensors on the host, in memory that torch's allocator does not know.  They hold a number;
what it stands for lives as long as the tensor's memory, whoever holds that: so a handle may be saved for the backward,
twice if the graph is retained, and a step that breaks off leaves nothing behind.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from remat_compiler.errors import OffloadError
from remat_compiler.offload.copies import Copy, copy_back, copy_out, flat_bytes
from remat_compiler.offload.place import Place
from remat_compiler.offload.store import Slot, store_of

NAMESPACE = "remat"
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
_SCHEMAS = (
    "offload(Tensor x, str place) -> Tensor",
    "offloaded(Tensor(a!) handle, Tensor x) -> ()",
    "prefetch(Tensor handle, SymInt[] size, int[] order, ScalarType dtype, Device device) -> (Tensor, Tensor)",
    "fetch(Tensor(a!) value, Tensor ticket) -> ()",
)


@dataclass(eq=False)
class _Moved:
    """A value off the device."""

    slot: Slot
    out: Copy
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


@dataclass(eq=False)
class _Returning:
    """A value on its way back."""

    moved: _Moved
    back: Copy


class _Anchor(np.ndarray):
    """Memory of a handle or ticket, and what it stands for."""

    held: _Moved | _Returning


_place = cache(Place.parse)
_numbers = itertools.count(1)
_known: weakref.WeakValueDictionary[int, _Moved | _Returning] = weakref.WeakValueDictionary()


def handles_in(name: str, result: Any) -> tuple[Tensor, ...]:
    """The handles and tickets among the results of the operator of that name: they take no memory of the device."""
    if name == "remat.offload.default":
        return (result,)
    return (result[1],) if name == "remat.prefetch.default" else ()


def _tensor_for(held: _Moved | _Returning) -> Tensor:
    """A tensor that stands for `held`, and keeps it alive."""
    number = next(_numbers)
    _known[number] = held
    anchor = np.array([number], np.int64).view(_Anchor)
    anchor.held = held
    return torch.from_numpy(anchor)


def _held_by(tensor: Tensor) -> Any:
    held = _known.get(int(tensor.item()))
    if held is None:
        raise OffloadError(
            "a value that was moved off the device is gone: something replaced the tensors that the forward saved, "
            "such as hooks of torch.autograd.graph.saved_tensors_hooks; leave out offload_budget, or the hooks"
        )
    return held


def _offload(x: Tensor, place: str) -> Tensor:
    flat = flat_bytes(x)
    # Also what has no bytes has a place.
    slot = store_of(_place(place), pinned=x.is_cuda).take(max(flat.nbytes, 1))
    return _tensor_for(_Moved(slot, copy_out(flat, slot), tuple(x.shape), x.stride(), x.dtype))


def _offloaded(handle: Tensor, x: Tensor) -> None:
    _held_by(handle).out.wait()


def _prefetch(
    handle: Tensor, size: Sequence[int], order: Sequence[int], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    moved: _Moved = _held_by(handle)
    # As it went: some operators give results another layout or type than the graph says, to readers that take any.
    value = torch.empty_strided(moved.size, moved.stride, dtype=moved.dtype, device=device)
    return value, _tensor_for(_Returning(moved, copy_back(moved.slot, value, moved.out)))


def _fetch(value: Tensor, ticket: Tensor) -> None:
    returning: _Returning = _held_by(ticket)
    returning.back.wait()


def _fake_handle(x: Tensor) -> Tensor:
    return torch.empty(1, dtype=torch.int64, device="cpu")


def _fake_prefetch(
    handle: Tensor, size: Sequence[int], order: Sequence[int], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    return torch.empty_permuted(tuple(size), tuple(order), dtype=dtype, device=device), _fake_handle(handle)


def _fake_nothing(one: Tensor, other: Tensor) -> None:
    return None


def _define() -> None:
    # Inductor must hand values over in the layout that the graph says, for its readers rely on getting that back.
    for schema in _SCHEMAS:
        _LIBRARY.define(schema, tags=(torch.Tag.needs_exact_strides,))  # type: ignore[no-untyped-call]
    kernels = {"offload": _offload, "offloaded": _offloaded, "prefetch": _prefetch, "fetch": _fetch}
    for name, kernel in kernels.items():
        _LIBRARY.impl(name, kernel, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    fakes: dict[str, Callable[..., object]] = {
        "offload": lambda x, place: _fake_handle(x),
        "offloaded": _fake_nothing,
        "prefetch": _fake_prefetch,
        "fetch": _fake_nothing,
    }
    for name, fake in fakes.items():
        torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_LIBRARY)


_define()

OFFLOAD = torch.ops.remat.offload.default
OFFLOADED = torch.ops.remat.offloaded.default
PREFETCH = torch.ops.remat.prefetch.default
FETCH = torch.ops.remat.fetch.default
