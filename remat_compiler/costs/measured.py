"""Operator times measured on the device: each distinct call once, then remembered.

Only operators that are safe to execute once more, alone, on any values are timed: no side effects, no communication,
no change in place, none that reads indices, nothing unknown.  Inputs are made up (see `TensorSpec.make`) and warm in
the caches.  Fused loops are not executed operator by operator under Inductor, so their times stay with the roofline,
like those of every operator that cannot be timed; the provenance says which.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from remat_compiler import torch_compat
from remat_compiler.costs.any_values import is_measurable
from remat_compiler.costs.clock import best_ns
from remat_compiler.costs.op_call import OpCall
from remat_compiler.costs.roofline import Roofline
from remat_compiler.costs.store import device_name, shared_store
from remat_compiler.costs.traffic import CapturedOps
from remat_compiler.ir.graph import Trait
from remat_compiler.log import logger_of
from remat_compiler.progress import progress

log = logger_of(__name__)

MEASURING_SECONDS = 20.0
"""Time that one graph may spend on measuring; the rest stays with the roofline until the next compilation."""
MOST_RUNS = 9
RUN_SECONDS = 0.05
"""An operator is not repeated beyond these."""
FAILED_NS = 0
"""Stands for a call that could not be made, so that it is not tried again."""

_SAFE = frozenset({Trait.RANDOM})


def measured_times(captured: CapturedOps, roofline: Roofline, directory: Path | None) -> tuple[list[int], list[str]]:
    """Time in nanoseconds and provenance of every operator.

    Args:
        captured: The step.
        roofline: Estimates for operators that are not measured, and the order in which to measure.
        directory: Where times are kept between processes; `None` keeps them for this process only.
    """
    # Estimates of all operators first: they stand in for whatever is not measured.
    estimates = [roofline.time_ns(op_id) for op_id in range(len(captured.main))]
    calls = {op_id: call for op_id in range(len(captured.main)) if (call := _call(captured, op_id)) is not None}
    known = _resolve(calls, estimates, directory)
    times, provenance = list(estimates), [roofline.provenance(op_id) for op_id in range(len(estimates))]
    for op_id, call in calls.items():
        found = known.get(call.key, FAILED_NS)
        if found != FAILED_NS:
            times[op_id] = found
            provenance[op_id] = f"measured:{device_name(call.device_type)}"
    return times, provenance


def _call(captured: CapturedOps, op_id: int) -> OpCall | None:
    """The call to time; `None` if the operator's time stays with the roofline."""
    # A loop has no call of its own under Inductor; an operator with an effect could change the user's state, or wait
    # for another rank.
    if captured.loops[op_id] or not captured.graph.ops[op_id].traits <= _SAFE:
        return None
    func, args, kwargs, _ = torch_compat.fake_call(captured.main[op_id])
    if getattr(func, "namespace", "") == "prims":
        # Inductor's own operators stand for code that it generates; called directly they are many times slower.
        return None
    call = OpCall.any(func, args, kwargs)
    return call if call is not None and is_measurable(call) else None


def _resolve(calls: Mapping[int, OpCall], estimates: list[int], directory: Path | None) -> Mapping[str, int]:
    """Times by key of the call; unknown ones are measured, the costliest first."""
    store = shared_store("time_ns", directory)
    known = store.current()
    weight: dict[str, int] = {}
    missing: dict[str, OpCall] = {}
    for op_id, call in calls.items():
        if call.key not in known:
            missing[call.key] = call
            # Equal calls share one measurement, so it is worth the time of all of them.
            weight[call.key] = weight.get(call.key, 0) + estimates[op_id]
    fresh: dict[str, int] = {}
    try:
        with progress("timing operators", len(missing)) as bar:
            # By key where weights are equal, so that equal processes measure the same operators before time is up.
            for key in sorted(missing, key=lambda key: (-weight[key], key)):
                if bar.seconds > MEASURING_SECONDS:
                    log.warning("%d of %d operators are not timed yet", len(missing) - len(fresh), len(missing))
                    break
                fresh[key] = time_call(missing[key])
                bar.advance()
    # An interrupted compilation keeps its measurements.
    finally:
        if fresh:
            store.add(fresh)
    # A live view of the store, which has the fresh times, too.
    return known


def time_call(call: OpCall) -> int:
    """Time of `call` on fresh real tensors, in nanoseconds; `FAILED_NS` (logged) when it cannot run so.

    The random state is put back afterwards.
    """
    device_type = call.device_type
    devices = [torch.cuda.current_device()] if device_type == "cuda" else []
    try:
        with torch_compat.outside_tracing(), torch.random.fork_rng(devices), torch.no_grad():
            args, kwargs = call.real_arguments()
            call.func(*args, **kwargs)  # the library sets itself up
            return best_ns(lambda: call.func(*args, **kwargs), device_type, most=MOST_RUNS, seconds=RUN_SECONDS)
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError) as error:
        log.warning("%s cannot be timed: %s", call.key, error)
        return FAILED_NS
