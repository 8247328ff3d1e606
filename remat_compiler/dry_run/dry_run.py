"""The exact peak of a compiled training step, before any real step.

The callable that `compile_fx` returned runs, with AOTAutograd's own wrappers and autograd's own engine, on fake
tensors: the code that Inductor emitted allocates and frees as it always does, only the kernels are left out
(`emitted_wrapper`), and a dispatch mode counts storages (`storage_tracker`). What an operator allocates inside
is added from measurements (`costs.workspace`). The same works for callables whose inner compiler interprets FX
graphs: there is nothing to leave out.

The step that is predicted is ``loss = compiled(*inputs); loss.backward()``. Resident storages (inputs, parameters,
constants) are not counted, gradients are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from remat_compiler import torch_compat
from remat_compiler.costs.op_call import tensors_in
from remat_compiler.costs.workspace import WorkspaceTable
from remat_compiler.dry_run.emitted_wrapper import DryRunUnsupported, EmittedGraph, make_twin
from remat_compiler.dry_run.fake_inputs import counted_device_type, make_fake_inputs
from remat_compiler.dry_run.storage_tracker import Moment, StorageLife, StorageTracker
from remat_compiler.simulate.step_peak import GraphMemory

log = logging.getLogger(__name__)

EXPECTED: tuple[type[Exception], ...] = (DryRunUnsupported, *torch_compat.FAKE_RUN_ERRORS)


@dataclass(frozen=True, slots=True)
class Sample:
    """Memory once an operator or kernel has run.

    Attributes:
        phase: ``forward`` or ``backward``.
        label: Operator or kernel.
        line: Line in the emitted wrapper of that phase; 0 outside of it (AOTAutograd, autograd).
        text: That line.
        live_bytes: Bytes alive, the operator's results included.
        workspace_bytes: Bytes that the operator held beyond them while it ran.
    """

    phase: str
    label: str
    line: int
    text: str
    live_bytes: int
    workspace_bytes: int


@dataclass(frozen=True, slots=True)
class LiveStorage:
    """A storage alive at the peak: its bytes and what made it (as in `Sample`)."""

    size_bytes: int
    label: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a dry run found.

    Attributes:
        peak_bytes: The peak of the step, workspaces included.
        timeline: Memory over the step; empty when `unknown` is set.
        peak_index: Index in `timeline` of the peak.
        alive_at_peak: Storages alive there, largest first.
        boundary_bytes: Bytes alive between forward and backward.
        saved_bytes: `boundary_bytes` less the storages of the outputs: what is saved for the backward.
        final_bytes: Bytes alive after the step: gradients and outputs.
        resident_bytes: Bytes of the inputs, parameters among them.
        unmeasured: Operators whose workspace could not be measured (counted as 0).
        unknown: Why nothing is known about the step; empty when the figures are valid.
        between_bytes: What other graphs take between forward and backward, see `PartitionRequest`.
    """

    peak_bytes: int = 0
    timeline: tuple[Sample, ...] = ()
    peak_index: int = 0
    alive_at_peak: tuple[LiveStorage, ...] = ()
    boundary_bytes: int = 0
    saved_bytes: int = 0
    final_bytes: int = 0
    resident_bytes: int = 0
    unmeasured: tuple[str, ...] = ()
    unknown: str = ""
    between_bytes: int = 0

    @property
    def needed_bytes(self) -> int:
        """The peak, or what is held while other graphs run, with what they take."""
        beside = self.boundary_bytes + self.between_bytes if self.between_bytes else 0
        return max(self.peak_bytes, beside)

    @property
    def memory(self) -> GraphMemory | None:
        """What a step of several graphs needs to know of this one; `None` where nothing is known."""
        if self.unknown:
            return None
        heights = {"forward": self.boundary_bytes, "backward": self.final_bytes}
        for sample in self.timeline:
            heights[sample.phase] = max(heights[sample.phase], sample.live_bytes + sample.workspace_bytes)
        outputs = min(self.boundary_bytes - self.saved_bytes, self.final_bytes)
        return GraphMemory(heights["forward"], self.boundary_bytes, heights["backward"], self.final_bytes, outputs)


def dry_run(
    compiled: Callable[..., Any],
    example_inputs: Sequence[Any],
    graphs: Sequence[EmittedGraph] = (),
    workspace: WorkspaceTable | None = None,
    gradients_exist: bool = False,
) -> DryRun:
    """Predict the memory of ``loss = compiled(*example_inputs); loss.backward()`` without computing anything.

    Leaves no trace: no gradient on a parameter, no random number drawn, no compiled state changed, no exception.

    Args:
        compiled: What `compile_fx` (or `aot_autograd`) returned.
        example_inputs: Inputs of the step, parameters included: real or fake tensors and integers. They need not
            be those of the compilation, if the compiled code is for dynamic shapes.
        graphs: What a `GraphRecorder` around the compilation recorded; empty for FX interpreters.
        workspace: Where measured workspaces are kept; a fresh table in memory by default.
        gradients_exist: Gradients are there already and are accumulated into (resident then).

    Returns:
        The prediction; with `unknown` set when the step depends on data (``.item()``, ``torch.cond``), or holds
        parameters of its own, or its wrapper is not Python, or fake tensors cannot run it for whatever reason.
    """
    try:
        with torch_compat.outside_tracing():
            step = FakeStep(example_inputs, graphs, gradients_exist)
            step.run(compiled)
        return _summary(step, workspace or WorkspaceTable())
    except Exception as error:  # An observer must not break what it observes: what it cannot run is unknown.
        reason = why_unknown(error)
        log.info("dry run: peak unknown, %s", reason)
        return DryRun(unknown=reason)


def why_unknown(error: Exception) -> str:
    """The reason that people are shown for a step that fake tensors cannot run; the traceback is logged for debug."""
    text = str(error).partition("\n")[0]
    reason = text if isinstance(error, DryRunUnsupported) else f"{type(error).__name__}: {text}"
    if not isinstance(error, EXPECTED):
        log.debug("dry run: not foreseen", exc_info=error)
    return reason


class FakeStep:
    """One training step on fake tensors, and what the tracker saw of it.

    Args:
        example_inputs: Inputs of the step.
        graphs: What Inductor emitted.
        gradients_exist: Gradients are there already and are accumulated into.
        symbols: Stand for the symbolic sizes of the inputs; by default numbers do.
    """

    def __init__(
        self,
        example_inputs: Sequence[Any],
        graphs: Sequence[EmittedGraph],
        gradients_exist: bool,
        symbols: torch_compat.OwnSymbols | None = None,
    ) -> None:
        device_type = counted_device_type(example_inputs)
        if device_type == "cuda" and not torch.cuda.is_available():
            raise DryRunUnsupported("autograd on fake CUDA tensors needs a CUDA build of torch and a device")
        self.graphs = graphs
        shape_env = None if symbols is None else symbols.shape_env
        self.mode = torch_compat.FakeTensorMode(allow_non_fake_inputs=True, shape_env=shape_env)
        files = [graph.filename for graph in graphs]
        self.tracker = StorageTracker(self.mode, device_type, files, symbolic=symbols is not None)
        self.inputs = make_fake_inputs(example_inputs, self.mode, device_type, gradients_exist, symbols)
        for tensor in self.inputs.held:
            self.tracker.hold_resident(tensor)
        self.boundary_bytes = self.saved_bytes = self.final_bytes = 0
        self.held: list[StorageLife] = []
        self.left: list[StorageLife] = []

    def run(self, compiled: Callable[..., Any]) -> None:
        """Forward, then backward from the outputs that require grad."""
        trains = any(isinstance(value, torch.Tensor) and value.requires_grad for value in self.inputs.values)
        with ExitStack() as stack:
            stack.enter_context(self.mode)
            for graph in self.graphs:
                twin = make_twin(graph, self.tracker)
                stack.enter_context(torch_compat.callable_replaced(graph.owner, twin))
            stack.enter_context(self.tracker)
            stack.enter_context(torch_compat.grad_mode_kept())
            trains = trains and torch.is_grad_enabled()
            torch.set_grad_enabled(trains)
            outputs = compiled(*self.inputs.values)
            torch.set_grad_enabled(trains)  # the step may leave gradients off for its caller
            self.boundary_bytes = self.tracker.live_bytes
            self.held = [life for life in self.tracker.lives if life.freed is None]
            self.saved_bytes = self.boundary_bytes - self.tracker.counted_bytes(tensors_in(outputs))
            self.tracker.phase = "backward"
            roots = self._seeded(outputs)
            if roots:
                torch.autograd.backward(roots)
            del roots
            self.final_bytes = self.tracker.live_bytes
            self.left = [life for life in self.tracker.lives if life.freed is None]
            moments, lives = tuple(self.tracker.moments), tuple(self.tracker.lives)
        self.moments: tuple[Moment, ...] = moments
        # What dies from here on dies after the step.
        self.alive = [(life, life.freed) for life in lives]

    def _seeded(self, outputs: Any) -> list[torch.Tensor]:
        """Scalars to start the backward from.

        A model that returns its loss is trained on the loss, whatever else it returns; outputs of a model that
        does not get a gradient each, as a loss behind it would make.
        """
        trained = [t for t in tensors_in(outputs) if t.requires_grad]
        scalars = [t for t in trained if t.numel() == 1]
        if scalars:
            return scalars
        with self.tracker.paused():
            return [_Seed.apply(tensor) for tensor in trained]  # type: ignore[no-untyped-call]


class _Seed(torch.autograd.Function):
    """An uncounted scalar behind an output; its backward makes the output's gradient, which counts."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor) -> torch.Tensor:
        """A scalar."""
        ctx.like = (output.shape, output.dtype, output.device)
        return output.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        """The gradient, contiguous as most losses make it."""
        shape, dtype, device = ctx.like
        return torch.ones(shape, dtype=dtype, device=device)


def _summary(step: FakeStep, workspace: WorkspaceTable) -> DryRun:
    calls = step.tracker.calls
    known = workspace.resolve(calls.values())
    sources = {graph.filename: graph.source.splitlines() for graph in step.graphs}

    def text(file: str, line: int) -> str:
        lines = sources.get(file, [])
        return lines[line - 1].strip() if 0 < line <= len(lines) else ""

    timeline = tuple(
        Sample(m.phase, m.label, m.line, text(m.file, m.line), m.live_bytes, known.get(m.workspace_key, 0))
        for m in step.moments
    )
    heights = [sample.live_bytes + sample.workspace_bytes for sample in timeline]
    peak_bytes = max(heights, default=0)
    peak_index = heights.index(peak_bytes) if heights else 0
    at_peak = [life for life, freed in step.alive if life.made <= peak_index and (freed is None or peak_index < freed)]
    alive = [_live(life, text) for life in at_peak]
    return DryRun(
        peak_bytes=peak_bytes,
        timeline=timeline,
        peak_index=peak_index,
        alive_at_peak=tuple(sorted(alive, key=lambda storage: (-storage.size_bytes, storage.line))),
        boundary_bytes=step.boundary_bytes,
        saved_bytes=step.saved_bytes,
        final_bytes=step.final_bytes,
        resident_bytes=step.inputs.resident_bytes,
        unmeasured=tuple(sorted({str(call.func) for key, call in calls.items() if key not in known})),
    )


def _live(life: StorageLife, text: Callable[[str, int], str]) -> LiveStorage:
    return LiveStorage(life.size_bytes, life.label, life.line, text(life.file, life.line))
