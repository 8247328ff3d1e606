"""Operator workspaces, the bytes that an operator allocates beyond its results: measured once, then remembered.

A convolution packs its weights, a sort keeps indices, a pointwise operator on mixed types converts its
inputs. No formula gives these bytes, they depend on shapes, strides, library, thread count and processor; so
the operator runs once on real tensors of the same shapes while the allocator's events are recorded.

Only operators that are safe on any values run so (`any_values`).  For those that read indices or seeds there are closed
forms.  What others take inside, users declare (`declared_workspace`), or it is seen as the program runs them
(`seen_workspace`); until then it is not known, and told of once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch._ops import OpOverload

from remat_compiler import torch_compat
from remat_compiler.costs.any_values import is_measurable
from remat_compiler.costs.clock import DEVICE_TYPES
from remat_compiler.costs.cuda_workspace import modelled_bytes
from remat_compiler.costs.declared_workspace import declared_bytes
from remat_compiler.costs.index_workspace import formed_cpu_bytes
from remat_compiler.costs.op_call import OpCall, tensors_in
from remat_compiler.costs.store import FigureStore
from remat_compiler.devices.machine_memory import available_bytes
from remat_compiler.gradients.leave import LEAVE
from remat_compiler.log import logger_of

log = logger_of(__name__)

_MOST_TRIED = 0.25
"""Part of the memory left that arguments and results of an operator may take which is run for a step on paper."""
_told: set[str] = set()
"""Operators that this process was told of, and calls that could not be measured."""


@dataclass(slots=True)
class WorkspaceTable:
    """Workspace bytes by operator call, in memory and, with a directory, on disk.

    Attributes:
        directory: Where the table is kept between processes; None keeps it in memory only.
        lacks_figures: Whether some that were asked for are not known so far, since a profiler ran, or the operator has
            not run: 0 was taken.
        awaited: Operators that were asked for and are not known, by name: the program's own runs of them tell.
        learnt: Called with the operator's name whenever such a run took more than was known.
    """

    directory: Path | None = None
    lacks_figures: bool = field(default=False, init=False)
    awaited: set[str] = field(default_factory=set, init=False)
    learnt: Callable[[str], None] = field(default=lambda name: None, init=False)
    _store: FigureStore = field(init=False)
    _warned: bool = field(default=False, init=False)
    _forms: dict[str, int | None] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._store = FigureStore("most_workspace_bytes", self.directory)

    @property
    def known(self) -> Mapping[str, int]:
        """Bytes by key of the call, in the environment as it is now."""
        return self._store.current()

    def resolve(self, calls: Iterable[OpCall], *, keep: bool = True) -> dict[str, int]:
        """Workspace bytes of each call by its key; calls that cannot be measured are left out.

        Measures unknown calls, and puts the random state back afterwards.

        Args:
            calls: The calls.
            keep: Whether measurements are kept on disk, or else in memory only.
        """
        known = self.known
        wanted = {call.key: call for call in calls}
        # Never kept: a form that is mended holds for figures of before, too.
        forms = {key: self._given(call) for key, call in wanted.items()}
        given = {key: size for key, size in forms.items() if size is not None}
        unknown = {key: call for key, call in wanted.items() if key not in known and key not in given}
        # Equal calls were merged by key, so each is measured once.
        measured = {key: call for key, call in unknown.items() if is_measurable(call)}
        self._await([call for key, call in unknown.items() if key not in measured])
        # Measuring starts a profiler of its own, and torch allows one at a time.
        if measured and torch_compat.profiler_is_running():
            self._warn_of_profiler()
            self.lacks_figures = True
            measured = {}
        fresh: dict[str, int] = {}
        for call in measured.values():
            # Tried again each time, since memory may have been short; told of once.
            size = measure_workspace(call, logging.DEBUG if call.key in _told else logging.WARNING)
            if size is None:
                _told.add(call.key)
            else:
                fresh[call.key] = size
        if fresh:
            (self._store.add if keep else self._store.note)(fresh)
        # `known` is a live view of the store, and has the fresh figures, too.
        return {**{key: known[key] for key in wanted if key in known}, **given}

    def _given(self, call: OpCall) -> int | None:
        """What is declared, or else the closed form of what is not to be measured; `None` if there is neither."""
        if call.func is LEAVE:
            return int(call.args[4])
        declared = _declared_bytes(call)
        if declared is not None:
            return declared
        if call.key not in self._forms:
            self._forms[call.key] = None if is_measurable(call) else formed_bytes(call)
        return self._forms[call.key]

    def _await(self, unknown: Sequence[OpCall]) -> None:
        """Wait for the program to run operators that are not known; tell once of each, but on paper."""
        # Of other devices nothing is known, which a warning of its own says.
        calls = [call for call in unknown if call.device_type in DEVICE_TYPES]
        self.awaited.update(str(call.func) for call in calls)
        self.lacks_figures = self.lacks_figures or bool(calls)
        # One that orders the effects of another is named by that.
        inner = (next((one for one in call.args if isinstance(one, OpOverload)), call.func) for call in calls)
        names = {str(func) for func in inner} - _told
        _told.update(names)
        # On paper nothing runs, and the answer itself names them.
        for name in () if torch_compat.is_on_paper() else sorted(names):
            log.warning(
                "the memory that %s takes inside, beside its results, is not known, and counts as none: it is not run "
                "while compiling, and a step with it may take so much more than predicted; what its first runs take "
                "counts in what is compiled afterwards, or declare it: remat_compiler.declare_workspace",
                name,
            )

    def saw(self, call: OpCall, size_bytes: int) -> None:
        """Learn that an operator which was awaited took so many bytes inside, as the program ran it."""
        if size_bytes > self.known.get(call.key, -1):
            self._store.add({call.key: size_bytes}, replaces=True)
            self.learnt(str(call.func))

    def _warn_of_profiler(self) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "while a profiler runs, what operators take inside cannot be measured, and peaks of what is compiled "
                "or of sizes that are new may be foreseen too low; let a few steps run before the profiler does"
            )

    def probe(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any = None) -> int:
        """Workspace bytes of one operator, from fake or meta arguments.

        Args:
            func: An operator overload, such as ``torch.ops.aten.convolution.default``.
            args: Its arguments; of tensors only shape, strides, dtype and device matter.
            kwargs: Its keyword arguments.
            result: Its result, if known: it helps to recognise operators that need no measurement.

        Returns:
            Bytes; 0 also for an operator that cannot be measured (logged).
        """
        call = OpCall.of(func, args, kwargs, result)
        return 0 if call is None else self.resolve([call]).get(call.key, 0)


def _declared_bytes(call: OpCall) -> int | None:
    """What the user declared of the operator; `None` if nothing was."""
    one = call.executed
    if not isinstance(one.func, OpOverload):
        return None
    return declared_bytes(torch_compat.overload_name(one.func), one.arguments_without_data)


def formed_bytes(call: OpCall) -> int | None:
    """Workspace of a call that is not to be measured, by a closed form; `None` if no form is known."""
    if call.copied_bytes is not None:
        return call.copied_bytes
    if call.device_type not in DEVICE_TYPES:
        return None
    return modelled_bytes(call) if call.device_type == "cuda" else formed_cpu_bytes(call)


def measure_workspace(call: OpCall, level: int = logging.WARNING) -> int | None:
    """Run `call` on fresh real tensors: the peak of its allocations less what its results keep, in bytes.

    The call must be safe on any values, see `is_measurable`.

    Args:
        call: The call.
        level: Of the message that it cannot run.

    Returns:
        None when the operator cannot run so; the reason is logged.  On paper, None if no form is known for a GPU, or
        if the call would take much of this machine's memory.
    """
    if torch_compat.paper_gpu() is not None and call.device_type == "cuda":
        return modelled_bytes(call)
    if torch_compat.is_on_paper() and _is_too_large(call):
        log.log(level, "the workspace of %s is unknown: this machine has too little memory left to try it", call.key)
        return None
    # The CPU's random state is always put back; a CUDA generator must be named.
    devices = [torch.cuda.current_device()] if call.device_type == "cuda" else []
    try:
        with torch_compat.outside_tracing(), torch.random.fork_rng(devices), torch.no_grad():
            args, kwargs = call.real_arguments()
            runs = [partial(call.func, *given, **kwargs) for given in _arguments_of_paths(call, args)]
            return max(workspace_of(run, call.device_type) for run in runs)
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError, AssertionError) as error:
        log.log(level, "the workspace of %s is unknown: %s", call.key, error)
        return None


def _is_too_large(call: OpCall) -> bool:
    """Whether a step on paper would take much of the machine's memory for one operator alone."""
    left = available_bytes()
    return left is not None and call.argument_bytes + _result_bytes(call) > _MOST_TRIED * left


def _result_bytes(call: OpCall) -> int:
    """Bytes of the results of a call; 0 if torch does not tell without running it."""
    if call.bodies:
        return 0
    args, kwargs = call.executed.arguments_without_data()
    try:
        with torch_compat.outside_tracing(), torch.no_grad():
            results = call.executed.func(*args, **kwargs)
    except torch_compat.FAKE_RUN_ERRORS:
        return 0
    return sum(one.nbytes for one in tensors_in(results))


def _arguments_of_paths(call: OpCall, args: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """For each path through the call its arguments: for each branch of a condition, and for two rounds of a loop."""
    name = str(call.func)
    if name == "cond":
        return [(choice, *args[1:]) for choice in (True, False)]
    if name == "while_loop":
        # Made-up values might never end it, and the second round runs beside the results of the first, as all others.
        # Again and again, since a run on a GPU is made twice.
        rounds = cycle((True, True, False))
        return [(lambda *_: torch.tensor(next(rounds)), *args[1:])]
    return [args]


def workspace_of(run: Callable[[], object], device_type: str) -> int:
    """Peak of what `run` allocates on the device less what its result keeps, in bytes."""
    if device_type == "cuda":
        run()  # the first call keeps library workspaces that later ones find
    deltas, _ = torch_compat.memory_deltas(run, device_type)
    return torch_compat.peak_beyond(deltas)
