"""Compile copies of one Dynamo graph, each by one request, and check the emitted code."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from torch import fx

from remat_compiler import torch_compat
from remat_compiler.arena.placing import Placement
from remat_compiler.compilation.arenas import place_in_arenas
from remat_compiler.compilation.arenas_by_size import ArenasBySize
from remat_compiler.compilation.attempt import Attempt
from remat_compiler.costs.workspace import WorkspaceTable
from remat_compiler.devices.allocator_setting import segments_expand
from remat_compiler.dry_run.dry_run import DryRun, dry_run
from remat_compiler.dry_run.emitted_wrapper import EmittedGraph, GraphRecorder
from remat_compiler.dry_run.fake_inputs import counted_device_type
from remat_compiler.dry_run.symbolic_run import symbolic_step
from remat_compiler.errors import Unplannable
from remat_compiler.log import logger_of
from remat_compiler.observer import observers
from remat_compiler.partition.defects import NO_DEFECT, in_brief
from remat_compiler.partition.partitioner import RematPartitioner, StockPartitioner
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.result import Partition
from remat_compiler.partition.session import Session
from remat_compiler.progress import progress
from remat_compiler.simulate.reserved import reserved_figures
from remat_compiler.stats import count, timed

logger = logger_of(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Compiler:
    """Compiles copies of one Dynamo graph.

    Attributes:
        gm: Dynamo's graph.
        example_inputs: Its inputs, as Dynamo gave them.
        traced: The same with symbols for sizes, see `torch_compat.symbolic_inputs`; empty if no sizes change.
        session: Tables and folders that the compilations of the graph share.
        costs: Identity of the operators' times, see `costs.table.cost_identity`.
        reported: Whether a report of an earlier compilation is available, for code that comes from a compiler's cache.
        settings: Names and values of the user's settings of Inductor.
    """

    gm: fx.GraphModule
    example_inputs: Sequence[Any]
    traced: Sequence[Any]
    session: Session
    costs: str
    reported: bool
    settings: Sequence[tuple[str, Any]] = ()

    def with_inputs(self, example_inputs: Sequence[Any]) -> Compiler:
        """The same for other inputs of the same shapes, such as fake ones, which hold no memory."""
        return replace(self, example_inputs=example_inputs)

    def run(self, request: PartitionRequest, real: bool = True) -> Attempt:
        """Compile and check; `NoPlan` if the planner refuses."""
        attempt = self._planned_or_stock(request, real)
        for observer in observers():
            observer.attempt_ends(attempt)
        return attempt

    def _planned_or_stock(self, request: PartitionRequest, real: bool) -> Attempt:
        """Compile by a plan, and check.

        If planning fails in an unforeseen way, the graph is compiled as the stock backend would, with a warning, and
        checked against the user's budget.
        """
        try:
            return self._planned(request, real)
        except NO_DEFECT:
            raise
        except Exception as error:  # A defect of planning must not keep anybody from training; see the docstring.
            foreseen = _warn_of_limits(error)
            logger.debug("planning failed", exc_info=error)
            # Without the traceback, whose frames would hold on to the step's tensors.
            failure = error.with_traceback(None)
        self.session.agreement.gathers.fails(str(failure).partition("\n")[0])
        # Always with kernels: no other plan follows, so this try is the one that runs.
        attempt = replace(self._run(request, True, StockPartitioner()), failure=failure)
        # Not before: of a program that autograd refuses, the stock backend raises the same error.
        if not foreseen:
            _warn_of_defect(failure)
        return attempt

    def _planned(self, request: PartitionRequest, real: bool) -> Attempt:
        """Plan, compile and check.

        If a cache has the compiled code but its plan is unknown, it is planned again; the compiled kernels still come
        from the cache.
        """
        partitioner = RematPartitioner(request, self.costs)
        # With symbolic sizes, the choice among variants needs the partition itself, which no cache has; and what a
        # rank's cache has need not be what the others plan.
        if not request.sizes and self.session.agreement.is_alone:
            attempt = self._run(request, real, partitioner)
            if self.reported or not attempt.trains or attempt.partitions:
                return attempt
        # A hit in AOTAutograd's cache skips the partitioner, and with it all that is known of the plan.
        with torch_compat.partitioner_always_runs():
            return self._run(request, real, partitioner)

    def _run(self, request: PartitionRequest, real: bool, partitioner: RematPartitioner | StockPartitioner) -> Attempt:
        """Compile with a partitioner, and check."""
        on_inductor = request.inner == "inductor"
        on_paper = _is_on_paper(request)
        # On paper the user's step runs code of its own, which nobody placed.
        places = request.layout == "planned" and not on_paper
        # An interpreter has no kernels to leave out, and on paper all are left out: the code runs as it is.
        real = real or not on_inductor or on_paper
        compiled, partitions, recorder = self._compiled(request, real, places, partitioner)
        # The stock partitioner leaves no partition, and most interpreters no graph, to tell a backward by.
        unplanned = isinstance(partitioner, StockPartitioner) and torch_compat.needs_gradients(self.example_inputs)
        trains = bool(partitions or recorder.backward or unplanned)
        if not trains:
            nothing = DryRun(unknown="no backward")
            return Attempt(request, compiled, real, trains, tuple(partitions), nothing, graphs=tuple(recorder.graphs))
        fake_outputs = torch_compat.fake_outputs(compiled, self.example_inputs)
        sizes = dict(request.sizes)
        # With symbolic sizes `check_at` outlives the compilation, so it must not hold the user's batch.
        at_sizes = self.traced if sizes else self.example_inputs
        graphs = tuple(recorder.graphs)
        check_at = partial(_check_at, compiled, at_sizes, graphs, self.session.workspace, request.between_bytes)
        check, formula, arenas = check_at(sizes), None, None
        if places and not sizes:
            check = place_in_arenas(check, graphs, partial(check_at, sizes), request.between_bytes > 0)
        # Only code that runs needs a formula; a step that fails on numbers fails on symbols, too.
        if sizes and real and not check.unknown:
            with timed("dry_run_s"):
                signed = [symbol.name for symbol in torch_compat.input_symbols(self.traced) if symbol.signed]
                in_chunks = any(one.chunked for one in partitions)
                step = symbolic_step(compiled, self.traced, graphs, sizes, signed, in_chunks)
            formula = None if step is None else step.formula()
            if places and step is not None:
                arenas = ArenasBySize(step, graphs, check_at, request.between_bytes > 0)
                # The sizes that a plan is made for may be larger than those that it is to run at.
                if request.budget_bytes is None or check.needed_bytes <= request.budget_bytes:
                    check = arenas.place(tuple(sizes.values()))
        if request.budget_of == "reserved" and check.trace is not None:
            check = replace(check, reserved_bytes=reserved_figures(check.trace).of(segments_expand()))
        done = Attempt(request, compiled, real, trains, tuple(partitions), check, formula, fake_outputs=fake_outputs)
        done = replace(done, collectives=tuple(graph.collectives for graph in graphs) if on_inductor else ())
        return replace(done, check_at=check_at, graphs=graphs, arenas=arenas) if sizes else done

    def _compiled(
        self, request: PartitionRequest, real: bool, places: bool, partitioner: RematPartitioner | StockPartitioner
    ) -> tuple[Callable[..., Any], Sequence[Partition], GraphRecorder]:
        """What the inner compiler makes of a copy of the graph, and what was heard of it meanwhile."""
        on_inductor, start = request.inner == "inductor", time.perf_counter()
        kernels = real and not _is_on_paper(request)
        count("compilations")
        for observer in observers():
            observer.attempt_begins(request)
        with ExitStack() as stack:
            stack.enter_context(timed("compiling_s"))
            stack.enter_context(progress(f"planning and {'compiling' if kernels else 'generating code'}"))
            stack.enter_context(nullcontext() if real else torch_compat.code_generation_only())
            stack.enter_context(torch_compat.with_settings(self.settings) if on_inductor else nullcontext())
            stack.enter_context(torch_compat.grad_mode_kept())
            stack.enter_context(torch_compat.graphs_may_be_retained())
            partitions = stack.enter_context(self.session.compiling())
            placed_on = counted_device_type(self.example_inputs) if places and real else ""
            recorder = stack.enter_context(GraphRecorder(placed_on, self.session.workspace if real else None))
            # A copy, since the inner compiler changes the graph, and further tries start from Dynamo's.
            module = torch_compat.copy_module(self.gm)
            if on_inductor:
                compiled = torch_compat.compile_with_inductor(module, self.example_inputs, partitioner)
            else:
                compiled = torch_compat.compile_with_interpreter(
                    module, self.example_inputs, partitioner, recorder.interpreted
                )
        logger.debug("compiled in %.1f s", time.perf_counter() - start)
        return compiled, partitions, recorder


def _warn_of_limits(error: Exception) -> bool:
    """Say why a graph is compiled without a plan if that is a known limit; whether it is."""
    if isinstance(error, Unplannable):
        # A known limit, such as an input that overlaps itself and is changed in place: no defect to report.
        logger.warning("%s: compiled as without a budget, and only checked against it", error)
    elif isinstance(error, torch_compat.VALUE_ERRORS):
        # In a backward of values that a mask chooses, say.  The stock backend fails as well, and Dynamo goes on.
        logger.warning(
            "torch cannot trace this graph with its backward, where the result of %s depends on data: where no "
            "backend can compile it, Dynamo leaves it to eager, and memory_budget is not kept",
            error.func,
        )
    else:
        return False
    return True


def _warn_of_defect(error: Exception) -> None:
    """Say that a graph which can be compiled is compiled without a plan."""
    logger.warning(
        "planning failed (%s), so the graph is compiled as without a budget and only checked against it; "
        'please report this as a defect, with the traceback that TORCH_LOGS="+remat_compiler" shows',
        in_brief(error),
    )


def _is_on_paper(request: PartitionRequest) -> bool:
    """Whether the inner compiler emits code that nobody runs."""
    return request.inner == "inductor" and torch_compat.is_on_paper()


def _check_at(
    compiled: Callable[..., Any],
    inputs: Sequence[Any],
    graphs: Sequence[EmittedGraph],
    workspace: WorkspaceTable,
    between_bytes: int,
    sizes: Mapping[str, int],
    placements: Mapping[bool, Placement] = MappingProxyType({}),
) -> DryRun:
    """The dry run at sizes given by symbol, none if no sizes change, with allocations in arenas."""
    with timed("dry_run_s"), torch_compat.sizes_at(sizes):
        check = dry_run(compiled, inputs, graphs, workspace, placements=placements)
    return replace(check, between_bytes=between_bytes)
