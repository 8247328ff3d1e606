"""Compile copies of one Dynamo graph, each by one request, and check what was emitted."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

from torch import fx

from remat_compiler import torch_compat
from remat_compiler.compilation.attempt import Attempt
from remat_compiler.compilation.graph_key import parameter_shapes
from remat_compiler.costs.workspace import WorkspaceTable
from remat_compiler.dry_run.dry_run import DryRun, dry_run
from remat_compiler.dry_run.emitted_wrapper import EmittedGraph, GraphRecorder
from remat_compiler.dry_run.symbolic_run import symbolic_run
from remat_compiler.errors import OptionError, UnknownName, Unplannable, UnsupportedTorch
from remat_compiler.partition.partitioner import RematPartitioner, StockPartitioner, collect
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.result import NoPlan
from remat_compiler.progress import progress
from remat_compiler.stats import count, timed

logger = logging.getLogger(__name__)

_NO_DEFECT = (NoPlan, OptionError, UnknownName, UnsupportedTorch, torch_compat.DynamoRestart)
"""What a compilation raises for the user, or for Dynamo, which starts anew where it learnt more of the function."""


class Compiler:
    """Compiles copies of one Dynamo graph.

    Args:
        gm: Dynamo's graph.
        example_inputs: Its inputs, as Dynamo gave them.
        traced: The same with symbols for sizes, see `torch_compat.symbolic_inputs`; empty where no sizes change.
        workspace: Measured workspaces.
        costs: What decides the operators' times, see `costs.table.cost_identity`.
        reported: Whether a report of an earlier compilation is at hand, for code that comes from a compiler's cache.
        settings: Names and values of the user's settings of Inductor.
    """

    def __init__(
        self,
        gm: fx.GraphModule,
        example_inputs: Sequence[Any],
        traced: Sequence[Any],
        workspace: WorkspaceTable,
        costs: str,
        reported: bool,
        settings: Sequence[tuple[str, Any]] = (),
    ) -> None:
        self.gm = gm
        self.settings = settings
        self.inputs = torch_compat.input_sources(gm)
        self.costs = costs
        self.parameters = parameter_shapes(gm, example_inputs)
        self.reported = reported
        self.example_inputs = example_inputs
        self.traced = traced
        self.workspace = workspace

    def with_inputs(self, example_inputs: Sequence[Any]) -> Compiler:
        """The same for other inputs of the same shapes, such as fake ones, which hold no memory."""
        other = copy(self)
        other.example_inputs = example_inputs
        return other

    def run(self, request: PartitionRequest, real: bool = True) -> Attempt:
        """Compile and check; `NoPlan` when the planner refuses.

        Where planning fails in a way that nobody foresaw, the graph is compiled as the stock backend would, with a
        warning: it is for the user's budget to say whether that will do.
        """
        try:
            return self._planned(request, real)
        except _NO_DEFECT:
            raise
        except Unplannable as error:
            logger.warning("%s: compiled as without a budget, and only checked against it", error)
            failure: Exception = error.with_traceback(None)
        except Exception as error:  # A defect of planning must not keep anybody from training; see the docstring.
            logger.warning(
                "planning failed (%s: %s), so the graph is compiled as without a budget and only checked against it; "
                'please report this as a defect, with the traceback that TORCH_LOGS="+remat_compiler" shows',
                type(error).__name__,
                str(error).partition("\n")[0],
            )
            logger.debug("planning failed", exc_info=error)
            # Its frames would hold on to the step's tensors.
            failure = error.with_traceback(None)
        return replace(self._run(request, True, StockPartitioner()), failure=failure)

    def _planned(self, request: PartitionRequest, real: bool) -> Attempt:
        """Plan, compile and check.

        Where a cache has the compiled code and nothing is known of its plan, it is planned again; the
        compiled kernels still come from the cache.
        """
        partitioner = RematPartitioner(request, self.costs)
        if not request.sizes:
            attempt = self._run(request, real, partitioner)
            if self.reported or not attempt.trains or attempt.partitions:
                return attempt
        with torch_compat.partitioner_always_runs():
            return self._run(request, real, partitioner)

    def _run(self, request: PartitionRequest, real: bool, partitioner: RematPartitioner | StockPartitioner) -> Attempt:
        """Compile with a partitioner, and check."""
        on_inductor = request.inner == "inductor"
        inner = torch_compat.compile_with_inductor if on_inductor else torch_compat.compile_with_interpreter
        real = real or not on_inductor
        start = time.perf_counter()
        count("compilations")
        with ExitStack() as stack:
            stack.enter_context(timed("compiling_s"))
            stack.enter_context(progress(f"planning and {'compiling' if real else 'generating code'}"))
            stack.enter_context(nullcontext() if real else torch_compat.code_generation_only())
            stack.enter_context(torch_compat.with_settings(self.settings))
            stack.enter_context(torch_compat.grad_mode_kept())
            stack.enter_context(torch_compat.graphs_may_be_retained())
            partitions = stack.enter_context(collect(self.workspace, self.parameters, self.inputs))
            recorder = stack.enter_context(GraphRecorder())
            compiled = inner(torch_compat.copy_module(self.gm), self.example_inputs, partitioner)
        unplanned = isinstance(partitioner, StockPartitioner) and torch_compat.needs_gradients(self.example_inputs)
        trains = bool(partitions or recorder.backward or unplanned)
        logger.debug("compiled in %.1f s", time.perf_counter() - start)
        if not trains:
            return Attempt(request, compiled, real, trains, tuple(partitions), DryRun(unknown="no backward"))
        fake_outputs = torch_compat.fake_outputs(compiled, self.example_inputs)
        sizes = dict(request.sizes)
        # What is kept of a try must not hold the example inputs, which are a user's batch.
        at_sizes = self.traced if sizes else self.example_inputs
        check_at = partial(_check_at, compiled, at_sizes, tuple(recorder.graphs), self.workspace)
        check, form = replace(check_at(sizes), between_bytes=request.between_bytes), None
        if not sizes:
            return Attempt(request, compiled, real, trains, tuple(partitions), check, fake_outputs=fake_outputs)
        if real and not check.unknown:
            with timed("dry_run_s"):
                signed = [symbol.name for symbol in torch_compat.input_symbols(self.traced) if symbol.signed]
                form = symbolic_run(compiled, self.traced, recorder.graphs, sizes, signed)
        graphs = tuple(recorder.graphs)
        return Attempt(request, compiled, real, trains, tuple(partitions), check, form, check_at, graphs, fake_outputs)


def _check_at(
    compiled: Callable[..., Any],
    inputs: Sequence[Any],
    graphs: Sequence[EmittedGraph],
    workspace: WorkspaceTable,
    sizes: Mapping[str, int],
) -> DryRun:
    """The dry run at sizes given by symbol, which are none where no sizes change."""
    with timed("dry_run_s"), torch_compat.sizes_at(sizes):
        return dry_run(compiled, inputs, graphs, workspace)
