"""Dynamo traces the user's functions, and none of this package's."""

from __future__ import annotations

import gc

import torch
from torch import nn
from torch._dynamo.utils import counters

import remat_compiler.backend  # noqa: F401 - registers the backend


def test_what_follows_a_backward_within_a_compiled_function_is_not_traced() -> None:
    torch._dynamo.reset()
    model = nn.Linear(8, 8)

    def whole_step(x: torch.Tensor) -> None:
        loss = model(x).square().mean()
        torch._dynamo.graph_break()
        loss.backward()

    options = {"memory_budget": "1MiB", "inner": "eager", "cost_model": "nominal"}
    step = torch.compile(whole_step, backend="remat", options=options)
    before = counters["frames"]["total"]
    tried = []
    # Finalizers and callbacks of the collector are frames, too, whichever step they come in.
    gc.collect()
    gc.disable()
    try:
        for _ in range(4):
            step(torch.randn(4, 8))
            tried.append(counters["frames"]["total"])
    finally:
        gc.enable()
    # A new node of autograd in each step would have its backward traced again.
    assert tried[1:] == [tried[0]] * 3
    # The function, what follows its breaks, and a finalizer or two: none of the hooks' some twenty functions.
    assert tried[0] - before <= 6
    assert not any("remat_compiler" in str(reason) for reason in counters["graph_break"])
