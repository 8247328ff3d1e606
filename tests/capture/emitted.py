"""The simulated peak of a model's step beside that of the code that Inductor makes of it."""

from __future__ import annotations

import re
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
# Wrappers call the functions of their loops by these names.
_FUNCTION = re.compile(r"^ +cpp_fused\w*\(", re.MULTILINE)


def estimated_and_emitted(model: nn.Module, inputs: Sequence[Tensor], request: PartitionRequest) -> tuple[int, int]:
    """Peak of the plan that answers `request`, and of the code that Inductor makes of it."""
    return emitted(model, inputs, request)[:2]


def emitted(model: nn.Module, inputs: Sequence[Tensor], request: PartitionRequest) -> tuple[int, int, int]:
    """Both peaks, and how many functions of loops the emitted code calls."""
    found: list[tuple[int, int, int]] = []

    def backend(gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        with (
            torch_compat.code_generation_only(),
            Session(workspace=TABLE).compiling() as partitions,
            GraphRecorder() as recorder,
        ):
            compiled = torch_compat.compile_with_inductor(gm, example_inputs, RematPartitioner(request, ""))
        check = dry_run(compiled, example_inputs, recorder.graphs, TABLE)
        assert not check.unknown
        functions = sum(len(_FUNCTION.findall(graph.source)) for graph in recorder.graphs)
        found.append((sum(p.peak_bytes for p in partitions), check.peak_bytes, functions))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(model, backend=backend, dynamic=False)(*inputs)
    (row,) = found
    return row
