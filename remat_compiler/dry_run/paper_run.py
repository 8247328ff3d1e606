"""Steps on a GPU that is not there: emitted code runs on fake tensors, without its kernels, whenever it is called."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from remat_compiler import torch_compat
from remat_compiler.dry_run.emitted_wrapper import EmittedGraph, make_twin
from remat_compiler.dry_run.storage_tracker import active_tracker, result_in_arguments


@contextmanager
def emitted_on_paper() -> Iterator[None]:
    """Within the block, Inductor emits code without kernels, which makes fake tensors in the fake mode of its caller.

    That holds for whatever is compiled: the planned step, and what the user compiles beside it.
    """
    torch_compat.add_post_compile_listener(_run_its_twin)
    try:
        with torch_compat.code_generation_only():
            yield
    finally:
        torch_compat.remove_post_compile_listener(_run_its_twin)


def _run_its_twin(owner: Any) -> Callable[[], None]:
    graph = EmittedGraph.of(owner)
    # Where it is called the user's fake mode is entered, to which constants of the module are to belong.
    twin = cache(lambda: make_twin(graph, _Unobserved()))

    def run(inputs: list[Any]) -> Any:
        # Who counts the step leaves out the same operators.
        with nullcontext() if active_tracker() is not None else _WithoutWriting():  # type: ignore[no-untyped-call]
            return twin()(inputs)

    return lambda: torch_compat.run_instead(owner, run)


class _WithoutWriting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Leaves out operators that only write a given tensor: some, such as ``_scaled_mm.out``, have no fake form."""

    # Random operators that run again are such, and are passed on.
    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        written = result_in_arguments(func, args, kwargs or {})
        return func(*args, **(kwargs or {})) if written is None else written


class _Unobserved:
    """Makes the tensors of emitted code, and reports them to the counter of the step, if there is one."""

    def entered(self, is_backward: bool, arguments: Sequence[Any]) -> None:
        """A wrapper is called."""
        tracker = active_tracker()
        if tracker is not None:
            tracker.entered(is_backward, arguments)

    def left(self, results: Sequence[Any]) -> None:
        """It returns."""
        tracker = active_tracker()
        if tracker is not None:
            tracker.left(results)

    def saw_kernel(self, name: str) -> None:
        """A kernel would have run."""
        tracker = active_tracker()
        if tracker is not None:
            tracker.saw_kernel(name)

    def adopt_constant(self, tensor: torch.Tensor) -> torch.Tensor:
        """A fake tensor for a constant of the module."""
        tracker = active_tracker()
        if tracker is not None:
            return tracker.adopt_constant(tensor)
        fake: torch.Tensor = torch_compat.active_fake_mode().from_tensor(tensor)
        return fake

    def allocate(self, size: Any, stride: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """An empty fake tensor."""
        tracker = active_tracker()
        if tracker is not None:
            return tracker.allocate(size, stride, dtype, device)
        return torch_compat.new_fake(torch_compat.active_fake_mode(), size, stride, dtype, device)

    def make_outside(self, size: Any, stride: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """An empty fake tensor that does not count."""
        tracker = active_tracker()
        if tracker is not None:
            return tracker.make_outside(size, stride, dtype, device)
        return torch_compat.new_fake(torch_compat.active_fake_mode(), size, stride, dtype, device)

    def view(self, base: torch.Tensor, size: Any, stride: Any, offset: int) -> torch.Tensor:
        """A view of the storage of `base`."""
        return torch_compat.fake_view(torch_compat.active_fake_mode(), base, size, stride, offset)
