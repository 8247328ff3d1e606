"""The exact peak of a compiled training step, before any real step.

The callable that `compile_fx` returned runs, with AOTAutograd's own wrappers and autograd's own engine, on fake
tensors: the code that Inductor emitted allocates and frees as it always does, only the kernels are left out
(`emitted_wrapper`), and a dispatch mode counts storages (`storage_tracker`). Operator workspaces are added from
measurements (`costs.workspace`). The same works for callables whose inner compiler interprets FX graphs: they have
no kernels to leave out.

The step that is predicted is ``loss = compiled(*inputs); loss.backward()``. Resident storages (inputs, parameters,
constants) are not counted, gradients are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch

from remat_compiler import torch_compat
from remat_compiler.arena.placing import Placement
from remat_compiler.costs.libraries import kept_lives
from remat_compiler.costs.op_call import tensors_in
from remat_compiler.costs.workspace import WorkspaceTable
from remat_compiler.dry_run.emitted_wrapper import DryRunUnsupported, EmittedGraph, make_twin
from remat_compiler.dry_run.fake_inputs import counted_device_type, make_fake_inputs
from remat_compiler.dry_run.placeable import PlaceableStep, placeable
from remat_compiler.dry_run.storage_tracker import Moment, StorageLife, StorageTracker
from remat_compiler.dry_run.traced_step import TracedStep
from remat_compiler.ir.arenas import ArenaFigures
from remat_compiler.log import logger_of
from remat_compiler.simulate.reserved import AllocationTrace
from remat_compiler.step_model.graph_memory import GraphMemory

log = logger_of(__name__)

MORE_BLOCKS_BYTES, _MORE_BLOCKS_PART = 4 * 2**20, 4
"""What blocks may take beside the model of the allocator: so many bytes, or this part of what they add by the model.

On an H100 five models had 3.2 MB less to 4.8 MB more in use, the most in ResNet-50, where blocks add 20 MB.
"""
_NOWHERE: Mapping[bool, Placement] = MappingProxyType({})
EXPECTED: tuple[type[Exception], ...] = (DryRunUnsupported, *torch_compat.FAKE_RUN_ERRORS)
"""Errors that say that a step cannot run on fake tensors; any other one may be a defect of the dry run."""


@dataclass(frozen=True, slots=True)
class MemorySample:
    """Memory once an operator or kernel has run.

    Attributes:
        phase: ``forward`` or ``backward``.
        label: Operator or kernel.
        line: Line in the emitted wrapper of that phase; 0 outside of it (AOTAutograd, autograd).
        text: That line.
        live_bytes: Bytes alive, including the operator's results.
        workspace_bytes: Workspace of the operator: bytes beyond its results that it held while it ran.
    """

    phase: str
    label: str
    line: int
    text: str
    live_bytes: int
    workspace_bytes: int


@dataclass(frozen=True, slots=True)
class DryRun:
    """Result of a dry run.

    Attributes:
        peak_bytes: The peak of the step, workspaces included, as the device's allocator counts: on CUDA by blocks.
        timeline: Memory over the step; empty when `unknown` is set.
        peak_index: Index in `timeline` of the peak.
        boundary_bytes: Bytes alive between forward and backward.
        saved_bytes: Bytes saved for the backward: `boundary_bytes` less the storages of the outputs.
        final_bytes: Bytes alive after the step: gradients and outputs.
        released_bytes: Bytes of outputs that the backward does not need: gone once the caller lets go of them.
        resident_bytes: Bytes of the inputs, including parameters.
        unmeasured: Operators whose workspace could not be measured (counted as 0).
        beside_unmeasured: For each call of such an operator, by its key, most bytes alive as it runs.
        unknown: Why nothing is known about the step; empty when the figures are valid.
        between_bytes: Bytes that other graphs take between forward and backward, see `PartitionRequest`.
        reserved_bytes: What the caching allocator reserves for the step, if the budget covers that; else 0.
        trace: What the step allocates, for the model of that allocator; `None` where nothing is known.
        requested_bytes: The peak by what is asked of the allocator; 0 where that is not known.
        notes: What the user should know of the emitted code.
        arenas: The arenas that hold some of it, if there are any.
        device_type: Type of the device whose memory is counted, such as ``cpu``; empty where nothing is known.
        allocations: What may be placed in arenas; `None` where that is not known, or there is not one graph each way.
    """

    peak_bytes: int = 0
    timeline: tuple[MemorySample, ...] = ()
    peak_index: int = 0
    boundary_bytes: int = 0
    saved_bytes: int = 0
    final_bytes: int = 0
    released_bytes: int = 0
    resident_bytes: int = 0
    unmeasured: tuple[str, ...] = ()
    beside_unmeasured: Mapping[str, int] = field(default_factory=dict)
    unknown: str = ""
    between_bytes: int = 0
    reserved_bytes: int = 0
    trace: AllocationTrace | None = field(default=None, repr=False)
    allocations: PlaceableStep | None = field(default=None, repr=False)
    arenas: ArenaFigures | None = None
    notes: tuple[str, ...] = ()
    requested_bytes: int = 0
    device_type: str = ""

    @property
    def slack_bytes(self) -> int:
        """What blocks add to the peak."""
        return self.peak_bytes - self.requested_bytes if self.requested_bytes else 0

    @property
    def more_blocks_bytes(self) -> int:
        """What blocks may add beyond that: which ones serve a step hangs on all that the process did before."""
        return min(self.slack_bytes, max(MORE_BLOCKS_BYTES, self.slack_bytes // _MORE_BLOCKS_PART))

    @property
    def needed_bytes(self) -> int:
        """What the budget must cover.

        The peak of the graph with what blocks may add, or its held bytes together with the other graphs that run
        meanwhile, or the bytes reserved for it; the largest of these.
        """
        # Other graphs run between forward and backward, so they add to the bytes held there, not to the peak.
        beside = self.boundary_bytes + self.between_bytes if self.between_bytes else 0
        return max(self.peak_bytes + self.more_blocks_bytes, beside, self.reserved_bytes)

    @property
    def memory(self) -> GraphMemory | None:
        """Memory of this graph as the peak of a step of several graphs depends on it; `None` if nothing is known."""
        if self.unknown:
            return None
        # A phase peaks no lower than it ends, even if nothing of it was seen to allocate.
        heights = {"forward": self.boundary_bytes, "backward": self.final_bytes}
        for sample in self.timeline:
            heights[sample.phase] = max(heights[sample.phase], sample.live_bytes + sample.workspace_bytes)
        outputs = min(self.boundary_bytes - self.saved_bytes, self.final_bytes)
        return GraphMemory(
            forward_bytes=heights["forward"],
            held_bytes=self.boundary_bytes,
            backward_bytes=heights["backward"],
            left_bytes=self.final_bytes,
            output_bytes=outputs,
            released_bytes=min(self.released_bytes, outputs),
        )


def dry_run(
    compiled: Callable[..., Any],
    example_inputs: Sequence[Any],
    graphs: Sequence[EmittedGraph] = (),
    workspace: WorkspaceTable | None = None,
    gradients_exist: bool = False,
    placements: Mapping[bool, Placement] = _NOWHERE,
) -> DryRun:
    """Predict the memory of ``loss = compiled(*example_inputs); loss.backward()`` without computing anything.

    Leaves no trace: no gradient on a parameter, no random number drawn, no compiled state changed, no exception.

    Args:
        compiled: The callable that `compile_fx` (or `aot_autograd`) returned.
        example_inputs: Inputs of the step, including parameters: real or fake tensors and integers. They need not
            be those of the compilation, if the compiled code is for dynamic shapes.
        graphs: Graphs that a `GraphRecorder` around the compilation recorded; empty for FX interpreters.
        workspace: Table of measured workspaces; a fresh one in memory by default.
        gradients_exist: Gradients exist before the step, so that it accumulates into them; they count as resident.
        placements: Places of allocations in arenas, of the backward (`True`) and of the forward.

    Returns:
        The prediction. `unknown` is set when the step depends on data (``.item()``, ``torch.cond``), holds parameters
        of its own, has a wrapper that is not Python, or cannot run on fake tensors for any other reason.
    """
    try:
        # Dynamo's compilation may be under way, whose modes would see and record the step.
        with torch_compat.outside_tracing():
            step = FakeStep(example_inputs, graphs, gradients_exist, placements=placements)
            step.run(compiled)
        # Outside of the step's modes: workspaces that no table has are measured by running the operators.
        return _summary(step, workspace or WorkspaceTable())
    except Exception as error:  # An observer must not break what it observes: what it cannot run is unknown.
        reason = why_unknown(error)
        log.info("dry run: peak unknown, %s", reason)
        return DryRun(unknown=reason)


def why_unknown(error: Exception) -> str:
    """Reason shown to users for a step that cannot run on fake tensors; an unexpected traceback is logged at DEBUG."""
    text = str(error).partition("\n")[0]
    reason = text if isinstance(error, DryRunUnsupported) else f"{type(error).__name__}: {text}"
    if isinstance(error, torch_compat.VALUE_ERRORS):
        largest = torch_compat.UNBACKED_FALLBACK
        reason += f" depends on data, a size of which is planned as {largest}, or as the bound known of it"
    if not isinstance(error, EXPECTED):
        log.debug("dry run: not foreseen", exc_info=error)
    return reason


class FakeStep:
    """One training step on fake tensors, and its memory as the tracker saw it.

    Args:
        example_inputs: Inputs of the step.
        graphs: Graphs that Inductor emitted.
        gradients_exist: Gradients exist before the step, so that it accumulates into them.
        symbols: Symbols that replace the symbolic sizes of the inputs; by default numbers replace them.
        placements: Places of allocations in arenas, of the backward (`True`) and of the forward.
    """

    def __init__(
        self,
        example_inputs: Sequence[Any],
        graphs: Sequence[EmittedGraph],
        gradients_exist: bool,
        symbols: torch_compat.OwnSymbols | None = None,
        placements: Mapping[bool, Placement] = _NOWHERE,
    ) -> None:
        device_type = counted_device_type(example_inputs)
        if device_type == "cuda" and not torch.cuda.is_available():
            raise DryRunUnsupported("autograd on fake CUDA tensors needs a CUDA build of torch and a device")
        self.graphs = graphs
        self.placements = placements
        shape_env = None if symbols is None else symbols.shape_env
        self.mode = torch_compat.FakeTensorMode(allow_non_fake_inputs=True, shape_env=shape_env)
        files = [graph.filename for graph in graphs]
        self.tracker = StorageTracker(self.mode, device_type, files, symbolic=symbols is not None)
        self.inputs = make_fake_inputs(example_inputs, self.mode, device_type, gradients_exist, symbols)
        # Before the first operator: a storage counts as soon as an operator returns it, be it a view of an input.
        for tensor in self.inputs.held:
            self.tracker.hold_resident(tensor)
        self.outputs: tuple[StorageLife | None, ...] = ()
        self.held: list[StorageLife] = []
        self.released: list[StorageLife] = []
        self.left: list[StorageLife] = []

    def run(self, compiled: Callable[..., Any]) -> None:
        """Forward, then backward from the outputs that require grad."""
        trains = any(isinstance(value, torch.Tensor) and value.requires_grad for value in self.inputs.values)
        with ExitStack() as stack:
            stack.enter_context(self.mode)
            # Only calls with fake tensors are replaced: other threads may run the same graphs meanwhile.
            for graph in self.graphs:
                twin = make_twin(graph, self.tracker, self.placements.get(graph.is_backward))
                stack.enter_context(torch_compat.callable_replaced(graph.owner, twin))
            # The last mode entered is the first to see an operator, and has the fake mode compute the result.
            stack.enter_context(self.tracker)
            stack.enter_context(torch_compat.grad_mode_kept())
            trains = trains and torch.is_grad_enabled()
            torch.set_grad_enabled(trains)
            outputs = compiled(*self.inputs.values)
            torch.set_grad_enabled(trains)  # the step may leave gradients off for its caller
            # Between forward and backward the outputs are held by the caller, all else by the autograd graph.
            self.held = [life for life in self.tracker.lives if life.freed is None]
            returned = [part for one in tensors_in(outputs) for part in torch_compat.wrapped_tensors(one)]
            self.outputs = self.tracker.lives_of(returned)
            saved = torch_compat.storages_saved_by(outputs)
            only_held = [t for t in returned if saved.isdisjoint(torch_compat.storages_of([t]))]
            self.released = _distinct(self.tracker.lives_of(only_held))
            del returned, only_held
            self.tracker.phase = "backward"
            roots = self._seeded(outputs)
            if roots:
                torch.autograd.backward(roots)
            # A real caller holds the outputs beyond the step, but no seeds.
            del roots
            self.left = [life for life in self.tracker.lives if life.freed is None]
            moments, lives = tuple(self.tracker.moments), tuple(self.tracker.lives)
        self.moments: tuple[Moment, ...] = moments
        # Copied: a storage that dies later, as this method returns or afterwards, is alive to the end of the step.
        self.alive = [(life, life.freed) for life in lives]

    def _seeded(self, outputs: Any) -> list[torch.Tensor]:
        """Scalars to start the backward from.

        A model that returns its loss is trained on the loss, whatever else it returns. If a model returns no loss,
        each of its outputs gets a gradient, as from a loss that is computed outside of the graph.
        """
        trained = [t for t in tensors_in(outputs) if t.requires_grad]
        scalars = [t for t in trained if t.numel() == 1]
        if scalars:
            return scalars
        # A real step has no such scalars; only the gradients that their backward makes exist in it.
        with self.tracker.paused():
            return [_Seed.apply(tensor) for tensor in trained]  # type: ignore[no-untyped-call]


class _Seed(torch.autograd.Function):
    """An uncounted scalar computed from an output; its backward makes the output's gradient, which counts."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor) -> torch.Tensor:
        """A scalar."""
        # On no device, so that no memory of the output is kept alive.
        ctx.like = torch_compat.wrapped_again(output, partial(_ones_like, device="meta"), _same)
        ctx.device = output.device
        # Of a part, since a wrapper makes more wrappers.
        return torch_compat.wrapped_tensors(output)[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        """The gradient, contiguous as most losses make it."""
        return torch_compat.wrapped_again(ctx.like, partial(_ones_like, device=ctx.device), _same)


def _ones_like(part: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """Ones of the same shape, contiguous."""
    return torch.ones(part.shape, dtype=part.dtype, device=device)


def _same(size: Any) -> Any:
    return size


def _distinct(lives: Iterable[StorageLife | None]) -> list[StorageLife]:
    return list({id(life): life for life in lives if life is not None}.values())


def _summary(step: FakeStep, workspace: WorkspaceTable) -> DryRun:
    calls = step.tracker.calls
    known = workspace.resolve(calls.values())
    sources = {graph.filename: graph.source.splitlines() for graph in step.graphs}

    def text(file: str, line: int) -> str:
        lines = sources.get(file, [])
        return lines[line - 1].strip() if 0 < line <= len(lines) else ""

    requested = tuple(
        MemorySample(m.phase, m.label, m.line, text(m.file, m.line), m.live_bytes, known.get(m.workspace_key, 0))
        for m in step.moments
    )
    on_cuda = step.tracker.device_type == "cuda"
    kept = kept_lives(requested, torch.cuda.get_device_capability()) if on_cuda else ()
    traced = TracedStep.of(step.alive, requested, step.inputs.resident_sizes, step.inputs.trained_sizes, kept)
    blocks, timeline = traced.as_asked(), requested
    if on_cuda:
        # The allocator hands out blocks, which may be larger than what is asked for; the budget is one of blocks.
        blocks = traced.blocks()
        timeline = tuple(
            replace(sample, live_bytes=sample.live_bytes + more, workspace_bytes=sample.workspace_bytes + inside)
            for sample, (more, inside) in zip(requested, blocks.more_at(len(requested)))
        )
    heights = [sample.live_bytes + sample.workspace_bytes for sample in timeline]
    peak_bytes = max(heights, default=0)
    peak_index = heights.index(peak_bytes) if heights else 0
    boundary_bytes = blocks.bytes_of(step.held)
    beside: dict[str, int] = {}
    for moment in step.moments:
        if moment.workspace_key and moment.workspace_key not in known:
            beside[moment.workspace_key] = max(moment.live_bytes, beside.get(moment.workspace_key, 0))
    return DryRun(
        peak_bytes=peak_bytes,
        requested_bytes=max((sample.live_bytes + sample.workspace_bytes for sample in requested), default=0),
        timeline=timeline,
        peak_index=peak_index,
        boundary_bytes=boundary_bytes,
        saved_bytes=boundary_bytes - blocks.bytes_of(_distinct(step.outputs)),
        final_bytes=blocks.bytes_of(step.left),
        released_bytes=blocks.bytes_of(step.released),
        resident_bytes=step.inputs.resident_bytes,
        unmeasured=tuple(sorted({str(calls[key].func) for key in beside})),
        beside_unmeasured=beside,
        trace=traced.trace,
        device_type=step.tracker.device_type,
        allocations=placeable(step.tracker.wrapper_calls, step.outputs, step.alive, requested, traced.positions),
    )
