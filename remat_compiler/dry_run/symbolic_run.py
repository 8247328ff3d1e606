"""The dry run on symbolic sizes: one run gives the peak for every size of the inputs.

The emitted code is the same for all sizes, and so are the moments at which it allocates and frees; only the bytes
differ.  So the step of `dry_run` runs once with sizes that are symbols of their own (`torch_compat.OwnSymbols`), and
its assumptions about them become conditions of the formula.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from remat_compiler import torch_compat
from remat_compiler.costs.op_call import OpCall
from remat_compiler.dry_run.dry_run import FakeStep, why_unknown
from remat_compiler.dry_run.emitted_wrapper import EmittedGraph
from remat_compiler.dry_run.peak_formula import NO_WORKSPACE, PeakFormula, bytes_by_monomial, peak_formula_of
from remat_compiler.log import logger_of

log = logger_of(__name__)


@dataclass(frozen=True, slots=True)
class SymbolicLife:
    """Life of one storage at any sizes.

    Attributes:
        made: First moment at which it is alive.
        freed: First moment at which it is gone; `None` if it outlives the step.
        size: Its bytes by monomial.
        is_held: Whether it is alive between forward and backward.
        is_left: Whether it is alive after the step.
    """

    made: int
    freed: int | None
    size: Mapping[str, int]
    is_held: bool = False
    is_left: bool = False


@dataclass(frozen=True, slots=True)
class SymbolicCall:
    """One call of an emitted wrapper.

    Attributes:
        is_backward: Whether it is the backward's.
        made: For each of its allocations in order, the number of its life.
        positions: By symbol, the position of the argument that is the symbol itself.
    """

    is_backward: bool
    made: tuple[int, ...]
    positions: Mapping[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class SymbolicStep:
    """The memory of a step at any sizes.

    Attributes:
        symbols: Names of the sizes.
        lives: All storages, in the order in which they are made.
        moment_calls: For each moment the position in `calls` of the operator that runs then, else `NO_WORKSPACE`.
        conditions: Conditions under which this holds.
        calls: Operators that may have a workspace.
        bind_sizes: See `PeakFormula`.
        graphs: Calls of emitted wrappers.
    """

    symbols: tuple[str, ...]
    lives: tuple[SymbolicLife, ...]
    moment_calls: tuple[int, ...]
    conditions: tuple[str, ...]
    calls: tuple[OpCall, ...]
    bind_sizes: Callable[[Mapping[str, int]], AbstractContextManager[None]]
    graphs: tuple[SymbolicCall, ...]

    def formula(self, without: Collection[int] = (), more: Iterable[SymbolicLife] = ()) -> PeakFormula:
        """The peak by size.

        Args:
            without: Numbers of lives that do not count.
            more: Further lives.
        """
        lives = [*(life for i, life in enumerate(self.lives) if i not in without), *more]
        return peak_formula_of(
            self.symbols,
            [(life.made, life.freed, life.size) for life in lives],
            self.moment_calls,
            self.conditions,
            self.calls,
            self.bind_sizes,
            [life.size for life in lives if life.is_held],
            [life.size for life in lives if life.is_left],
        )

    def bytes_at(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Bytes of each life at these sizes (in the order of `symbols`)."""
        return bytes_by_monomial(self.symbols, [life.size for life in self.lives], sizes)


def symbolic_step(
    compiled: Callable[..., Any],
    inputs: Sequence[Any],
    graphs: Sequence[EmittedGraph],
    sizes: Mapping[str, int],
    signed: Iterable[str] = (),
    any_sizes: bool = False,
) -> SymbolicStep | None:
    """The memory of ``loss = compiled(*inputs); loss.backward()`` as a function of the sizes.

    Args:
        compiled: The callable that `compile_fx` (or `aot_autograd`) returned.
        inputs: Inputs as `torch_compat.symbolic_inputs` gives them.
        graphs: Graphs that a `GraphRecorder` around the compilation recorded; empty for FX interpreters.
        sizes: By symbol, the number that it stands for if the step asks for one.
        signed: Symbols that may be below 0.
        any_sizes: Whether the step was compiled under `torch_compat.any_sizes`.

    Returns:
        `None`, with a line in the log, if the step cannot run on fake tensors.
    """
    symbols = torch_compat.OwnSymbols(sizes, signed)
    try:
        general = torch_compat.any_sizes() if any_sizes else nullcontext()
        with torch_compat.outside_tracing(), torch_compat.sizes_at(sizes), general:
            step = FakeStep(inputs, graphs, gradients_exist=False, symbols=symbols)
            step.run(compiled)
    except Exception as error:  # As for a dry run on numbers: what it cannot run has no formula.
        log.info("symbolic dry run: no peak by size, %s", why_unknown(error))
        return None
    held, left = ({id(life) for life in lives} for lives in (step.held, step.left))
    # Moments name their operator by key, rows by position; moments without a workspace have the empty key.
    positions = {key: i for i, key in enumerate(step.tracker.calls)}
    number = {id(life): i for i, (life, _) in enumerate(step.alive)}
    return SymbolicStep(
        tuple(sizes),
        tuple(
            SymbolicLife(life.made, freed, symbols.polynomial(life.symbolic_bytes), id(life) in held, id(life) in left)
            for life, freed in step.alive
        ),
        tuple(positions.get(moment.workspace_key, NO_WORKSPACE) for moment in step.moments),
        symbols.assumptions,
        tuple(step.tracker.calls.values()),
        symbols.at,
        tuple(
            SymbolicCall(
                call.is_backward,
                tuple(number[id(life)] for life in call.made),
                {symbols.names[name]: position for name, position in call.symbols.items() if name in symbols.names},
            )
            for call in step.tracker.wrapper_calls
        ),
    )
