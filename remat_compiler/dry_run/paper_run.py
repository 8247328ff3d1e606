"""Steps on a GPU that is not there: emitted code runs on fake tensors, without its kernels, whenever it is called."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from remat_compiler import torch_compat
from remat_compiler.dry_run.emitted_wrapper import EmittedGraph, make_twin
from remat_compiler.dry_run.storage_tracker import active_tracker


def run_on_paper(graphs: Iterable[EmittedGraph]) -> None:
    """Let emitted graphs make fake tensors, in the fake mode that is entered when they are called.

    Raises:
        DryRunUnsupported: A wrapper is not Python.
    """
    for graph in graphs:
        torch_compat.run_instead(graph.owner, make_twin(graph, _Unobserved()))


class _Unobserved:
    """Makes the tensors of emitted code; whoever counts the step is told of them, if there is such."""

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

    def view(self, base: torch.Tensor, size: Any, stride: Any, offset: int) -> torch.Tensor:
        """A view of the storage of `base`."""
        return torch_compat.fake_view(torch_compat.active_fake_mode(), base, size, stride, offset)
