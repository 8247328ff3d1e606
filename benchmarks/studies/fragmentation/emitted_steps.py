"""Every allocation of emitted training steps, with its kind: planned and emitted under a budget, never compiled or run.

The backend's own search plans the step and has Inductor emit its code; kernels are left out, and the code runs on fake
tensors.  Costs are nominal, so that plans are the same on every machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, fx, nn

from remat_compiler import torch_compat
from remat_compiler.compilation.attempt import Attempt
from remat_compiler.compilation.compiler import Compiler
from remat_compiler.compilation.graph_key import devices_of
from remat_compiler.compilation.search import BudgetSearch, SearchGoal
from remat_compiler.costs.table import cost_identity
from remat_compiler.costs.workspace import WorkspaceTable
from remat_compiler.dry_run.dry_run import DryRun, FakeStep, dry_run
from remat_compiler.dry_run.emitted_wrapper import EmittedGraph, GraphRecorder
from remat_compiler.dry_run.peak_formula import condition_on
from remat_compiler.errors import RematError
from remat_compiler.graphs.question import first_request
from remat_compiler.ir.arenas import Allocations, Arenas
from remat_compiler.ir.layout import ALIGNMENT_BYTES, Block
from remat_compiler.options import Environment, RematOptions
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.session import Session
from remat_compiler.simulate.lives import Life
from remat_compiler.simulate.reserved import AllocationTrace
from remat_passes.registry import planner_class
from zoo import build

PLACEABLE = "placeable"
"""The kind of what may lie in an arena; every other kind may not."""
INSIDE = "inside "
"""Begin of the kind of what an operator takes while it runs."""
_WORKSPACE = WorkspaceTable()


@dataclass(frozen=True, slots=True)
class EmittedStep:
    """One emitted step.

    Attributes:
        budget_bytes: The budget; 0 for none.
        peak_bytes: Checked peak of the step.
        peak_moment: Where it is.
        moments: Moments of the step.
        boundary: First moment of the backward.
        resident: Sizes of parameters, buffers and inputs.
        state: Sizes of an optimizer's state, as Adam has it.
        lives: All allocations, in the order in which they are made.
        kinds: For each, what it is.
    """

    budget_bytes: int
    peak_bytes: int
    peak_moment: int
    moments: int
    boundary: int
    resident: tuple[int, ...]
    state: tuple[int, ...]
    lives: tuple[Life, ...]
    kinds: tuple[str, ...]

    @property
    def placeable(self) -> list[int]:
        """Numbers of the allocations that may lie in arenas, in the order of `allocations`."""
        return [n for n, kind in enumerate(self.kinds) if kind == PLACEABLE]

    @property
    def allocations(self) -> Allocations:
        """The same as the backend puts it to those who choose arenas."""
        blocks = tuple(self._block(n) for n in self.placeable)
        others = [self._block(n) for n, kind in enumerate(self.kinds) if kind != PLACEABLE]
        other = tuple(live(others, self.moments))
        return Allocations(blocks, other, self.boundary, ALIGNMENT_BYTES, tuple(self.placeable))

    @property
    def trace(self) -> AllocationTrace:
        """The same as the model of the allocator takes it."""
        return AllocationTrace(self.resident, self.state, self.lives)

    def scaled(self, scale: int) -> EmittedStep:
        """The same step of larger values."""
        return replace(
            self,
            budget_bytes=scale * self.budget_bytes,
            peak_bytes=scale * self.peak_bytes,
            resident=tuple(scale * size for size in self.resident),
            state=tuple(scale * size for size in self.state),
            lives=tuple(replace(life, size_bytes=scale * life.size_bytes) for life in self.lives),
        )

    def _block(self, n: int) -> Block:
        life = self.lives[n]
        return Block(life.made, self.moments if life.freed is None else life.freed, life.size_bytes)


def live(blocks: Sequence[Block], moments: int) -> list[int]:
    """Bytes alive at each moment."""
    change = [0] * (moments + 1)
    for block in blocks:
        change[block.start] += block.size_bytes
        change[block.stop] -= block.size_bytes
    return list(accumulate(change[:-1]))


@dataclass(frozen=True, slots=True, eq=False)
class Emitted:
    """Emitted code.

    Attributes:
        attempt: The try that the search keeps.
        graphs: Its graphs.
        inputs: What it may run on again; with symbols for sizes that change.
    """

    attempt: Attempt
    graphs: tuple[EmittedGraph, ...]
    inputs: Sequence[Any]

    def step(self, budget_bytes: int, sizes: Mapping[str, int] = MappingProxyType({})) -> EmittedStep:
        """Its allocations, whose kinds another run on fake tensors tells.

        Args:
            budget_bytes: The budget; 0 for none.
            sizes: The number of each symbol; none if no sizes change.

        Raises:
            RuntimeError: The step cannot be run on fake tensors, or is not one forward and one backward graph.
        """
        at = self.attempt.check_at
        check = at(sizes) if sizes and at is not None else self.attempt.check
        if check.unknown or check.trace is None or check.allocations is None:
            raise RuntimeError(check.unknown or "the step is not one forward and one backward graph")
        with torch_compat.outside_tracing(), torch_compat.sizes_at(sizes):
            run = FakeStep(self.inputs, self.graphs, False)
            run.run(self.attempt.compiled)
        kinds = _kinds(run, check)
        found = [(Life(s.size_bytes, s.made, freed), kinds[id(s)]) for s, freed in run.alive if s.size_bytes]
        for i, sample in enumerate(check.timeline):
            if sample.workspace_bytes:
                found.append((Life(sample.workspace_bytes, i, i + 1), f"{INSIDE}{_short(sample.label)}"))
        found.sort(key=lambda one: one[0].made)
        step = EmittedStep(
            budget_bytes=budget_bytes,
            peak_bytes=check.peak_bytes,
            peak_moment=check.peak_index,
            moments=len(check.timeline),
            boundary=check.allocations.allocations.boundary,
            resident=check.trace.resident,
            state=check.trace.state,
            lives=tuple(life for life, _ in found),
            kinds=tuple(kind for _, kind in found),
        )
        # What is compared must be what the backend sees.
        if step.lives != check.trace.lives or step.allocations.other_bytes != check.allocations.allocations.other_bytes:
            raise RuntimeError("the step did not run as when it was checked")
        return step

    def placed(self, arenas: Arenas) -> DryRun:
        """The check of the same code with its allocations in arenas; only for sizes that do not change."""
        step = self.attempt.check.allocations
        assert step is not None
        placements = step.placements(arenas)
        return dry_run(self.attempt.compiled, self.inputs, self.graphs, _WORKSPACE, placements=placements)


@dataclass(frozen=True, slots=True, eq=False)
class Emitter:
    """Emits the steps of one Dynamo graph.

    Attributes:
        gm: The graph.
        inputs: Its inputs.
    """

    gm: fx.GraphModule
    inputs: Sequence[Any]

    def at(self, budget: float | int | str) -> EmittedStep:
        """The step that the backend's search keeps under a budget.

        Raises:
            RematError: Nothing fits.
            RuntimeError: As `Emitted.step`.
        """
        return self.emit(budget).step(budget if isinstance(budget, int) else 0)

    def emit(self, budget: float | int | str) -> Emitted:
        """Its code; that for changing sizes is planned for those of the inputs.

        Raises:
            RematError: Nothing fits.
        """
        asked = {"memory_budget": budget, "max_slowdown": None, "cost_model": "nominal"}
        options = RematOptions.parse(asked, check_planner=planner_class)
        costs = cost_identity("nominal", {device.type for device in devices_of(self.gm, self.inputs)}, None, None)
        symbols = torch_compat.input_symbols(self.inputs)
        traced = torch_compat.symbolic_inputs(self.gm, self.inputs) if symbols else []
        compiler = Compiler(self.gm, self.inputs, traced, Session(workspace=_WORKSPACE), costs, False)
        known: dict[PartitionRequest, tuple[Attempt, tuple[EmittedGraph, ...]]] = {}

        def compile_(request: PartitionRequest, real: bool = True) -> Attempt:
            # Kernels are never compiled, so the request that is kept needs no second compilation.
            if request not in known:
                with GraphRecorder() as recorder:
                    attempt = compiler.run(request, real=False)
                known[request] = attempt, tuple(recorder.graphs)
            return known[request][0]

        search = BudgetSearch(compile_, options, torch_compat.has_convolutions(self.gm))
        first = first_request(options, Environment(None), self.inputs)
        first = replace(first, sizes=tuple((symbol.name, symbol.hint) for symbol in symbols))
        kept, _ = search.run(SearchGoal(first))
        return Emitted(kept, known[kept.request][1], traced or self.inputs)


def _kinds(run: FakeStep, check: DryRun) -> dict[int, str]:
    """What each storage of the step is."""
    assert check.allocations is not None
    outputs = {id(one) for one in run.outputs if one is not None}
    returned = {id(one) for call in run.tracker.wrapper_calls if call.is_backward for one in call.returned if one}
    kinds = {}
    for life, freed in run.alive:
        if id(life) in outputs:
            kind = "outputs"
        elif id(life) in returned or freed is None:
            kind = "gradients"
        elif check.timeline[life.made].label == "empty_strided":
            kind = "of odd sizes" if life.size_bytes % ALIGNMENT_BYTES else "other"
        else:
            kind = _short(check.timeline[life.made].label)
        kinds[id(life)] = kind
    for (_, blocks), call in zip(check.allocations.made, run.tracker.wrapper_calls):
        kinds.update((id(life), PLACEABLE) for block, life in zip(blocks, call.made) if block is not None)
    return kinds


def _short(label: str) -> str:
    """The name of an operator without its library and overload."""
    parts = label.split(".")
    return parts[1].strip("_") if len(parts) > 2 else parts[0].strip("_")


class _Done(BaseException):
    """Ends a compilation once everything is known of the graph."""


def with_emitter(
    module: nn.Module, inputs: Mapping[str, Tensor], use: Callable[[Emitter], None], changing: int | None = None
) -> None:
    """Call `use` with what emits the steps of a model, while Dynamo compiles it.

    Args:
        module: The model.
        inputs: Its inputs.
        use: What is called.
        changing: The dimension of all inputs whose size changes from call to call, if there is one.
    """
    torch._dynamo.reset()

    def backend(gm: fx.GraphModule, example_inputs: Any) -> Any:
        use(Emitter(gm, example_inputs))
        raise _Done

    given = dict(inputs)
    if changing is not None:
        given = {name: value.clone() for name, value in inputs.items()}
        for value in given.values():
            torch._dynamo.mark_dynamic(value, changing)
    with torch_compat.partitioner_always_runs():
        try:
            torch.compile(module, backend=backend, dynamic=False)(**given)
        except _Done:
            return
    raise RuntimeError("the model is not one graph")


def steps_at(name: str, positions: Sequence[float]) -> dict[str, EmittedStep]:
    """Steps of a model of the zoo by position, from the smallest peak (0) to that without a budget (1)."""
    found: dict[str, EmittedStep] = {}

    def emit(emitter: Emitter) -> None:
        high, low = emitter.at(1.0).peak_bytes, emitter.at("min").peak_bytes
        if low >= high:
            print(f"  {name}: no plan peaks lower than the step without a budget", flush=True)
            return
        for position in positions:
            _add(found, str(position), emitter, low + round(position * (high - low)))

    model = build(name)
    with_emitter(model.module, model.inputs, emit)
    return found


def steps_of_lengths(name: str, parts: Sequence[float], budget_bytes: int) -> dict[str, EmittedStep]:
    """Steps of a model of the zoo by length, as a part of its own: one code, emitted under a budget for the longest.

    Raises:
        RematError: Nothing fits.
        RuntimeError: There is no such code.
    """
    found: dict[str, EmittedStep] = {}

    def emit(emitter: Emitter) -> None:
        symbols = torch_compat.input_symbols(emitter.inputs)
        if not symbols:
            raise RuntimeError("its code has a fixed length")
        assumed = torch_compat.LaterAssumptions()
        emitted = emitter.emit(budget_bytes)
        names = [symbol.name for symbol in symbols]
        conditions = assumed.conditions(names)
        for part in parts:
            sizes = {symbol.name: round(part * symbol.hint) for symbol in symbols}
            if conditions is None or not condition_on(names, conditions)(*sizes.values()):
                raise RuntimeError(f"its code does not serve {part:g} of its length")
            found[str(part)] = emitted.step(budget_bytes, sizes)

    model = build(name)
    with_emitter(model.module, model.inputs, emit, _LENGTH)
    return found


_LENGTH = 1
"""The dimension of tokens that is their length."""


def has_length(inputs: Mapping[str, Tensor]) -> bool:
    """Whether a model takes tokens; recurrent ones are emitted step by step, for one length."""
    return "input_ids" in inputs


def _add(found: dict[str, EmittedStep], key: str, emitter: Emitter, budget_bytes: int) -> None:
    """Add the step under a budget, and say so where nothing fits."""
    try:
        found[key] = emitter.at(budget_bytes)
    except RematError as refused:
        print(f"  at {key}: {refused}", flush=True)


def stored(path: Path, make: Callable[[], dict[str, EmittedStep]]) -> dict[str, EmittedStep]:
    """Steps from a file, or from `make` if there is none, which is then written."""
    if path.exists():
        return {name: _read(one) for name, one in json.loads(path.read_text(encoding="utf-8")).items()}
    found = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({name: asdict(one) for name, one in found.items()}), encoding="utf-8")
    return found


def _read(one: dict[str, Any]) -> EmittedStep:
    lives = tuple(Life(**life) for life in one["lives"])
    lists = {name: tuple(one[name]) for name in ("resident", "state", "kinds")}
    return EmittedStep(**{**one, **lists, "lives": lives})
