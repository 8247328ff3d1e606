"""The dry run on symbolic sizes: one run gives the peak for every size of the inputs.

The emitted code is the same for all sizes, and so are the moments at which it allocates and frees; only the bytes
differ.  So the step of `dry_run` runs once with sizes that are symbols of their own (`torch_compat.OwnSymbols`), and
its assumptions about them become conditions of the formula.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from remat_compiler import torch_compat
from remat_compiler.dry_run.dry_run import FakeStep, why_unknown
from remat_compiler.dry_run.emitted_wrapper import EmittedGraph
from remat_compiler.dry_run.peak_formula import NO_WORKSPACE, PeakFormula, peak_formula_of

log = logging.getLogger(__name__)


def symbolic_run(
    compiled: Callable[..., Any],
    inputs: Sequence[Any],
    graphs: Sequence[EmittedGraph],
    sizes: Mapping[str, int],
    signed: Iterable[str] = (),
) -> PeakFormula | None:
    """The peak of ``loss = compiled(*inputs); loss.backward()`` as a function of the sizes.

    Args:
        compiled: The callable that `compile_fx` (or `aot_autograd`) returned.
        inputs: Inputs as `torch_compat.symbolic_inputs` gives them.
        graphs: Graphs that a `GraphRecorder` around the compilation recorded; empty for FX interpreters.
        sizes: By symbol, the number that it stands for if the step asks for one.
        signed: Symbols that may be below 0.

    Returns:
        `None`, with a line in the log, if the step cannot run on fake tensors.
    """
    symbols = torch_compat.OwnSymbols(sizes, signed)
    try:
        with torch_compat.outside_tracing(), torch_compat.sizes_at(sizes):
            step = FakeStep(inputs, graphs, gradients_exist=False, symbols=symbols)
            step.run(compiled)
    except Exception as error:  # As for a dry run on numbers: what it cannot run has no formula.
        log.info("symbolic dry run: no peak by size, %s", why_unknown(error))
        return None
    held, left = ([symbols.polynomial(life.symbolic_bytes) for life in lives] for lives in (step.held, step.left))
    # Moments name their operator by key, rows by position; moments without a workspace have the empty key.
    positions = {key: i for i, key in enumerate(step.tracker.calls)}
    return peak_formula_of(
        tuple(sizes),
        [(life.made, freed, symbols.polynomial(life.symbolic_bytes)) for life, freed in step.alive],
        [positions.get(moment.workspace_key, NO_WORKSPACE) for moment in step.moments],
        symbols.assumptions,
        tuple(step.tracker.calls.values()),
        symbols.at,
        held,
        left,
    )
