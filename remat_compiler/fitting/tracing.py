"""Runs a step on paper, or on the GPU that is there, and notes what became of it; for processes of their own."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._ops import OpOverload

from remat_compiler import torch_compat
from remat_compiler.costs.any_values import is_measurable
from remat_compiler.costs.op_call import OpCall
from remat_compiler.costs.seen_workspace import WorkspaceWatch
from remat_compiler.costs.workspace import WorkspaceTable
from remat_compiler.devices.allocator_setting import segments_expand
from remat_compiler.dry_run.emitted_wrapper import GraphRecorder
from remat_compiler.fitting.counted_step import BACKWARD, FORWARD, UPDATE, count, library_sizes, settle
from remat_compiler.fitting.made_step import MadeStep, made_step
from remat_compiler.fitting.paper_step import modelled_ns, on_paper
from remat_compiler.fitting.request import FitRequest
from remat_compiler.fitting.step_trace import OperatorCall, StepTrace
from remat_compiler.simulate.reserved import reserved_bytes
from remat_compiler.units import rounded_up

_TIMED_STEPS = 5
_STEPS = 3


def trace_on_paper(request: FitRequest) -> StepTrace:
    """The step at the request's one batch, on paper.

    Raises:
        RematError: As `remat_compiler.fit` does; `InfeasibleBudget` if the budget cannot be kept.
    """
    with on_paper(request.device) as (gpu, mode), GraphRecorder() as recorder:
        step = made_step(request, request.batch)
        step.compile(request.budget)
        settle(step, mode)
        counted = count(step, mode)
        trace = counted.trace(step, gpu)
        resident = [_rounded(size) for size in (*trace.resident, *trace.state, *library_sizes(gpu))]
        settled = replace(trace, resident=tuple(resident), state=(), kept=())
        return StepTrace(
            texts=_texts(recorder),
            requests=tuple(life.size_bytes for life in counted.lives),
            resident_bytes=sum(resident),
            forward_bytes=counted.peaks[FORWARD],
            backward_bytes=counted.peaks[BACKWARD],
            update_bytes=counted.peaks[UPDATE],
            reserved_bytes=reserved_bytes(settled, gpu.usable_bytes, expandable=segments_expand()),
            workspaces=dict(counted.workspaces),
            step_ns=modelled_ns(),
            calls=tuple(_portable(counted.calls.values())),
        )


def trace_on_gpu(request: FitRequest, calls: Sequence[OperatorCall]) -> StepTrace:
    """The same step on the GPU that is there.

    Args:
        request: The step.
        calls: The operators of which to measure what they take inside.

    Raises:
        RematError: As `trace_on_paper`.
    """
    with GraphRecorder() as recorder:
        step = made_step(request, request.batch, real=True)
        step.compile(request.budget)
        settle(step)
    # What compilation measured with is not part of the steps.
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(_STEPS):
        _whole(step)
    reserved = torch.cuda.max_memory_reserved()
    resident_bytes = torch.cuda.memory_allocated()
    peaks = _peaks(step)
    requests = torch_compat.recorded_requests(lambda: _whole(step))
    step_ns = _time_ns(step)
    return StepTrace(
        texts=_texts(recorder),
        requests=tuple(map(_rounded, requests)),
        resident_bytes=resident_bytes,
        forward_bytes=peaks[FORWARD],
        backward_bytes=peaks[BACKWARD],
        update_bytes=peaks[UPDATE],
        reserved_bytes=reserved,
        workspaces={**workspaces_of(calls), **seen_workspaces(lambda: _whole(step), calls)},
        step_ns=step_ns,
    )


def seen_workspaces(run: Callable[[], object], calls: Iterable[OperatorCall]) -> dict[str, int]:
    """What those of the operators take inside, by key, that are not run by themselves: seen as `run` runs them.

    Else their closed forms would be held against themselves.
    """
    wanted = {call.key: call for call in calls if not is_measurable(_call(call))}
    seen: dict[str, int] = {}

    def saw(call: OpCall, size_bytes: int) -> None:
        if call.key in wanted:
            seen[call.key] = max(size_bytes, seen.get(call.key, 0))

    with WorkspaceWatch({call.operator for call in wanted.values()}, saw):
        run()
    return seen


def workspaces_of(calls: Iterable[OperatorCall]) -> dict[str, int]:
    """What the operators take inside, by key: measured where there is a GPU, by forms on paper."""
    return WorkspaceTable().resolve([_call(call) for call in calls])


def _texts(recorder: GraphRecorder) -> tuple[str, ...]:
    """What was emitted, once: on a GPU, code is generated to be checked, and again to be run."""
    return tuple(dict.fromkeys(graph.source for graph in recorder.graphs))


def _rounded(size: int) -> int:
    """What a request counts for."""
    return rounded_up(size, torch_compat.allocation_alignment("cuda"))


def _portable(calls: Iterable[OpCall]) -> Iterable[OperatorCall]:
    """Those calls that another process can be sent: operators go by name, and not as arguments of others."""
    for call in calls:
        if isinstance(call.func, OpOverload):
            yield OperatorCall(call.key, str(call.func), call.args, dict(call.kwargs))


def _call(call: OperatorCall) -> OpCall:
    """The call in this process."""
    operator: Any = torch.ops
    for name in call.operator.split("."):
        operator = getattr(operator, name)
    return OpCall(operator, call.args, call.kwargs, call.key)


def _whole(step: MadeStep) -> None:
    step.run()
    step.update()


def _peaks(step: MadeStep) -> dict[str, int]:
    """Most that each phase of the step asks for on top of what is there before it: blocks may be larger."""
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    peaks: dict[str, int] = {}

    def ends(phase: str) -> None:
        peaks[phase] = torch.cuda.memory_stats()["requested_bytes.all.peak"] - before
        torch.cuda.reset_peak_memory_stats()

    torch.cuda.reset_peak_memory_stats()
    step.run(lambda: ends(FORWARD))
    ends(BACKWARD)
    step.update()
    ends(UPDATE)
    return peaks


def _time_ns(step: MadeStep) -> int:
    """Time of forward and backward: the median of a few steps."""
    taken_ms = []
    for _ in range(_TIMED_STEPS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        step.run()
        end.record()
        end.synchronize()
        step.update()
        taken_ms.append(start.elapsed_time(end))
    return int(statistics.median(taken_ms) * 1e6)
