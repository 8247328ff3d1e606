"""Memory ran out: which budget and peak were foreseen, what is alive at that peak, and what is in memory beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from remat_compiler.report.plan_report import PlanReport
from remat_compiler.report.store import reports
from remat_compiler.report.summary import live_part
from remat_compiler.units import format_bytes

if TYPE_CHECKING:
    from remat_compiler import torch_compat

_SHOWN = 6
"""Graphs, and places of tensors, that are shown."""


def explain_oom() -> str:
    """Why memory may have run out: the plans of this process, and what is in the memory of its devices.

    May be called after any error of memory; the sooner, the more of what was in memory is still there.  An error that
    leaves a planned graph carries this text of that graph as a note.

    Returns:
        Lines of text: for the planned graph with the largest step the budget, the predicted peak, and what is alive at
        it by source line and module; the other graphs, a line each; for each GPU that the process uses what tensors
        take, what torch's allocator keeps in reserve, and what others take; and what to do.
    """
    known = sorted(reports(), key=_needed_bytes, reverse=True)
    if not known:
        return "\n".join(["no graph is planned in this process", *memory_lines((), current_memories())])
    others = [f"{one.graph_name}: {_foreseen(one)}" for one in known[1 : 1 + _SHOWN]]
    if len(known) > 1 + _SHOWN:
        others.append(f"... and {len(known) - 1 - _SHOWN} smaller graphs (remat_compiler.reports())")
    return "\n".join([*plan_lines(known[:1]), *others, *memory_lines(known[:1], current_memories())])


def current_memories() -> tuple[torch_compat.DeviceMemory, ...]:
    """The memory of the devices now; empty if a device no longer answers."""
    from remat_compiler import torch_compat  # `import remat_compiler` imports no torch

    try:
        return torch_compat.device_memories()
    except RuntimeError:  # After some errors of CUDA every later question fails, too.
        return ()


def plan_lines(of: Sequence[PlanReport]) -> list[str]:
    """The budget, the predicted peak, and what is alive at it, of each joint graph of a compiled graph."""
    lines: list[str] = []
    for report in of:
        lines += [f"{report.graph_name}: {_foreseen(report)}", *live_part(report)]
    return lines


def memory_lines(of: Sequence[PlanReport], memories: Sequence[torch_compat.DeviceMemory]) -> list[str]:
    """What is in the memory of each device, and what to do.

    Args:
        of: The planned graphs whose step failed.
        memories: The memory of each device.
    """
    planned_bytes = max((report.resident_bytes + _needed_bytes(report) for report in of), default=0)
    lines: list[str] = []
    for memory in memories:
        lines += _device_lines(memory)
        if of:
            lines += _advice(of, planned_bytes, memory)
    return lines


def _needed_bytes(report: PlanReport) -> int:
    """The predicted peak of the step, else of the graph."""
    step_bytes = None if report.step is None else report.step.peak_bytes
    return report.peak_bytes if step_bytes is None else step_bytes


def _foreseen(report: PlanReport) -> str:
    step = report.step
    limit = report.budget_bytes if step is None or step.limit_bytes is None else step.limit_bytes
    budget = "no budget" if limit is None else f"a budget of {format_bytes(limit)}"
    whole = f", {format_bytes(_needed_bytes(report))} with the step's other graphs and gradients" if step else ""
    where = f", reached by {report.peak.origin}" if report.peak.origin.op else ""
    part = "backward" if report.peak.in_backward else "forward"
    return (
        f"planned for {budget}, predicted peak {format_bytes(report.peak_bytes)} in the {part}{where}{whole}; "
        f"parameters, buffers and inputs take {format_bytes(report.resident_bytes)} beside it"
    )


def _device_lines(memory: torch_compat.DeviceMemory) -> list[str]:
    """What is in the memory of a device."""
    unused_bytes = max(memory.reserved_bytes - memory.allocated_bytes, 0)
    pieces = ""
    if memory.free_pieces:
        largest = format_bytes(memory.free_pieces[0])
        pieces = f", in {len(memory.free_pieces)} pieces, the largest of {largest}"
    pools = f"; private pools (CUDA graphs) have {format_bytes(memory.pool_bytes)}" if memory.pool_bytes else ""
    lines = [
        f"{memory.name}: {format_bytes(memory.total_bytes)}, of which {format_bytes(memory.free_bytes)} are free now",
        f"  tensors take {format_bytes(memory.allocated_bytes)} now, and took {format_bytes(memory.most_bytes)} once",
        f"  torch's allocator keeps {format_bytes(unused_bytes)} more in reserve{pieces}{pools}",
        f"  other processes, the driver and libraries take {format_bytes(memory.elsewhere_bytes)}",
    ]
    lines += [f"  {format_bytes(size)} of the tensors were made at {place}" for place, size in memory.places[:_SHOWN]]
    return lines


def _advice(of: Sequence[PlanReport], planned_bytes: int, memory: torch_compat.DeviceMemory) -> list[str]:
    """What is beyond the plan, and what to do about it."""
    lines = []
    tensors = max(memory.allocated_bytes, memory.most_bytes)
    beyond_bytes = tensors - planned_bytes
    if beyond_bytes > 0:
        lines.append(
            f"  beyond the plan: tensors took {format_bytes(beyond_bytes)} more than the {format_bytes(planned_bytes)} "
            "that were foreseen with parameters and inputs: eager work outside the compiled graphs, the optimizer's "
            "state, gradients from before. Compile that work, too, or lower memory_budget by as much"
        )
    room_bytes = memory.total_bytes - memory.elsewhere_bytes
    if planned_bytes > room_bytes:
        lines.append(
            f"  the plan itself does not fit: {format_bytes(planned_bytes)} are foreseen with parameters and inputs, "
            f'of {format_bytes(room_bytes)} that others leave. Lower memory_budget, or use memory_budget="auto"'
        )
    reserve_bytes = memory.reserved_bytes - memory.allocated_bytes
    if reserve_bytes > 0 and tensors <= planned_bytes <= room_bytes:
        lines.append(
            f"  pieces in reserve: {format_bytes(reserve_bytes)} were free, but in pieces that were too small. Set "
            'PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or use budget_of="reserved" or layout="planned"'
        )
    if not lines and all(report.budget_bytes is None for report in of):
        lines.append("  nothing was asked for: name a memory_budget")
    return lines
