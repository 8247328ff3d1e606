"""An emitted graph that runs with its allocations in arenas, once it is told where they lie."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from remat_compiler import torch_compat
from remat_compiler.arena.placing import Places, Placing


class PlacedGraph:
    """Called in place of an emitted wrapper.

    Args:
        call: The wrapper, a function or a method of a runner that has the pieces.
        pieces: Functions that the wrapper calls through its runner.
        is_backward: Whether it is a backward's.
        device_type: Device type of what is placed.

    Attributes:
        places: Where the allocations of each call lie; `None` for where the allocator puts them.
    """

    def __init__(
        self, call: Callable[..., Any], pieces: tuple[Callable[..., Any], ...], is_backward: bool, device_type: str
    ) -> None:
        self.places: Places | None = None
        self._is_backward = is_backward
        self._under_way = threading.local()
        function: Any = call.__func__ if isinstance(call, MethodType) else call
        name = f"empty_strided_{device_type}"
        # Globals of its own: equal graphs share one module, and other threads may run it meanwhile.
        own = dict(function.__globals__)
        self._allocate_plainly: Callable[..., Tensor] = own.get(name, torch.empty_strided)
        self._make_view = own.get("reinterpret_tensor")
        self._call: Callable[[list[Any]], Any] = call
        if name not in own or self._make_view is None:
            # It allocates nothing on this device, or in a way unknown here.
            return
        for key, value in list(own.items()):
            if isinstance(value, FunctionType) and value.__globals__ is function.__globals__:
                own[key] = with_globals(value, own)
        own[name] = self._allocate
        self._call = with_globals(function, own)
        if isinstance(call, MethodType):
            self._call = MethodType(
                self._call, SimpleNamespace(partitions=[with_globals(cast("FunctionType", one), own) for one in pieces])
            )

    def __call__(self, arguments: list[Any]) -> Any:
        """Run the graph."""
        # The next backward of a graph that is kept reads the saved values again, on which this one would write.
        kept = self._is_backward and torch_compat.keeps_graph()
        placement = None if self.places is None or kept else self.places.of(arguments)
        if placement is None:
            return self._call(arguments)
        before = getattr(self._under_way, "placing", None)
        self._under_way.placing = Placing(placement, arguments, self._make_arena, self._make_view)  # type: ignore[arg-type]
        try:
            return self._call(arguments)
        finally:
            self._under_way.placing = before

    def _allocate(self, size: Any, stride: Any, dtype: torch.dtype) -> Tensor:
        placing = getattr(self._under_way, "placing", None)
        found = None if placing is None else placing.allocate(size, stride, dtype)
        return self._allocate_plainly(size, stride, dtype) if found is None else found

    def _make_arena(self, size_bytes: int) -> Tensor:
        return self._allocate_plainly((size_bytes,), (1,), torch.uint8)


def with_globals(function: FunctionType, own: dict[str, Any]) -> FunctionType:
    """`function` with other globals."""
    twin = FunctionType(function.__code__, own, function.__name__, function.__defaults__, function.__closure__)
    twin.__kwdefaults__ = function.__kwdefaults__
    return twin
