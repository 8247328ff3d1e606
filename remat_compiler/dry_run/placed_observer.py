"""The observer of a graph that runs on fake tensors; it makes the tensors, in arenas if these have a place for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from remat_compiler.arena.placing import Placement, Placing


class StepObserver(Protocol):
    """The interface through which a twin reports kernels and makes tensors."""

    def entered(self, is_backward: bool, arguments: Sequence[Any]) -> None:
        """A wrapper is called."""

    def left(self, results: Sequence[Any]) -> None:
        """It returns."""

    def saw_kernel(self, name: str) -> None:
        """A compiled kernel would have run."""

    def adopt_constant(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake tensor for a constant tensor of the module."""

    def allocate(self, size: Any, stride: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """An empty fake tensor, counted."""

    def make_outside(self, size: Any, stride: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """An empty fake tensor in memory that is not the allocator's, which does not count."""

    def view(self, base: torch.Tensor, size: Any, stride: Any, offset: int) -> torch.Tensor:
        """A view of the storage of `base`; `offset` counts elements from the start of the storage."""


class PlacedObserver:
    """Makes the tensors of one graph by `observer`, those that have a place in their arena.

    Attributes:
        view: Makes views, as `observer` does.
        make_outside: Makes tensors outside of the allocator's memory, likewise.
    """

    def __init__(self, observer: StepObserver) -> None:
        self._observer, self.view, self.make_outside = observer, observer.view, observer.make_outside
        self._placing: Placing | None = None

    def begin(self, placement: Placement | None, arguments: Sequence[Any]) -> None:
        """A call begins."""
        self._placing, self._device = None, torch.device("cpu")
        if placement is not None:
            self._placing = Placing(placement, arguments, self._make_arena, self._observer.view)

    def allocate(self, size: Any, stride: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """An empty fake tensor, counted, or in an arena that is."""
        self._device = device
        found = None if self._placing is None else self._placing.allocate(size, stride, dtype)
        return self._observer.allocate(size, stride, dtype, device) if found is None else found

    def _make_arena(self, size_bytes: int) -> torch.Tensor:
        return self._observer.allocate((size_bytes,), (1,), torch.uint8, self._device)
