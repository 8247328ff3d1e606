"""The note on an error of memory that leaves the call or the backward of a planned graph."""

from __future__ import annotations

from collections.abc import Sequence

from remat_compiler import torch_compat
from remat_compiler.report.out_of_memory import current_memories, memory_lines, plan_lines
from remat_compiler.report.plan_report import PlanReport
from remat_compiler.units import format_bytes

_HEAD = "remat: memory ran out in the "


def explain_failure(
    error: RuntimeError, of: Sequence[PlanReport], held: Sequence[int], *, in_backward: bool = False
) -> None:
    """Add a note to `error`; its class, arguments and message stay.

    Args:
        error: What the graph raised when memory ran out.
        of: The reports of the graph.
        held: Bytes that each call of a planned graph holds which awaits its backward.
        in_backward: Whether its backward raised it.
    """
    # Graphs may run within others: the innermost knows most.
    if _HEAD in torch_compat.note_of(error):
        return
    lines = [f"{_HEAD}{'backward' if in_backward else 'forward'} of a planned graph"]
    if len(held) == 1:
        lines.append(f"1 call of a planned graph awaits its backward, and holds {format_bytes(held[0])}")
    elif held:
        lines.append(f"{len(held)} calls of planned graphs await their backward, and hold {format_bytes(sum(held))}")
    # Read before the error leaves the frames that hold what is in memory.
    lines += [*plan_lines(of), *memory_lines(of, current_memories())]
    torch_compat.add_note(error, "\n".join(lines))
