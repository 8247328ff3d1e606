"""The simulated peak of a model's step beside that of the code that Inductor makes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from remat_compiler import torch_compat
from remat_compiler.costs.workspace import WorkspaceTable
from remat_compiler.dry_run.dry_run import dry_run
from remat_compiler.dry_run.emitted_wrapper import GraphRecorder
from remat_compiler.partition.partitioner import RematPartitioner
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.session import Session

TABLE = WorkspaceTable()


def estimated_and_emitted(model: nn.Module, inputs: Sequence[Tensor], request: PartitionRequest) -> tuple[int, int]:
    """Peak of the plan that answers `request`, and of the code that Inductor makes of it."""
    found: list[tuple[int, int]] = []

    def backend(gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        with (
            torch_compat.code_generation_only(),
            Session(workspace=TABLE).compiling() as partitions,
            GraphRecorder() as recorder,
        ):
            compiled = torch_compat.compile_with_inductor(gm, example_inputs, RematPartitioner(request, ""))
        check = dry_run(compiled, example_inputs, recorder.graphs, TABLE)
        assert not check.unknown
        found.append((sum(p.peak_bytes for p in partitions), check.peak_bytes))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(model, backend=backend, dynamic=False)(*inputs)
    (pair,) = found
    return pair
