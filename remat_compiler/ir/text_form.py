"""Plans as text for people: one step per line, with its bytes.

    step   17   again   op3 addmm_3   41.2 MiB   encoder.layer.0   model.py:12
    -- s7 addmm_3, 3.0 MiB, goes to the host --

The text is for reading and for comparing in tests; the JSON form is the one that is read back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from remat_compiler.ir.graph import TrainingGraph
from remat_compiler.ir.plan import Plan
from remat_compiler.units import format_bytes


def plan_text(graph: TrainingGraph, plan: Plan, live_bytes: Sequence[int] | None = None) -> str:
    """`plan` as text, one step per line, with the live bytes at each step if they are given.

    Args:
        graph: The graph that `plan` executes.
        plan: A valid plan.
        live_bytes: Live bytes at each step, as the simulator finds them.
    """
    done: set[int] = set()
    rows: list[tuple[str, ...]] = []
    for step, op_id in enumerate(plan.steps):
        op = graph.ops[op_id]
        live = "" if live_bytes is None else format_bytes(int(live_bytes[step]))
        how = "again" if op_id in done else ""
        rows.append((f"step {step}", how, f"op{op.id} {op.name}", live, op.module, op.source))
        done.add(op_id)
    lines = table(rows, right=(0, 3))
    # Transfers go into the line of the step that they precede, so that the positions of all steps stay right.
    for one in sorted(plan.transfers, key=lambda one: one.storage, reverse=True):
        moved = graph.storages[one.storage]
        text = f"s{moved.id} {moved.name}, {format_bytes(moved.size_bytes)},"
        for step, what in ((one.out_after, f"goes to the {one.tier.value}"), (one.back_before, "comes back")):
            lines[step] = f"-- {text} {what} --\n{lines[step]}"
    repeats = len(plan.steps) - len(done)
    head = f"# {len(plan.steps)} steps, {repeats} of them again; the backward starts at step {plan.boundary}"
    return "\n".join((head, *lines[: plan.boundary], "-- backward --", *lines[plan.boundary :], ""))


def table(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """`rows` as lines with aligned columns; columns in `right` are aligned to the right.

    Rows may differ in length; empty columns take no room.
    """
    columns = max((len(row) for row in rows), default=0)
    padded = [[*row, *[""] * (columns - len(row))] for row in rows]
    widths = [max(len(row[c]) for row in padded) for c in range(columns)]
    # Without times or sources their columns are empty everywhere.
    shown = [c for c in range(columns) if widths[c]]
    return [
        "  ".join(row[c].rjust(widths[c]) if c in right else row[c].ljust(widths[c]) for c in shown).rstrip()
        for row in padded
    ]


def format_time(time_ns: int) -> str:
    """`time_ns` as a person reads it: ``"12.3 µs"``."""
    if abs(time_ns) < 1_000:
        return f"{time_ns} ns"
    for unit, size in (("µs", 1_000), ("ms", 1_000_000)):
        # Rounded before it is compared, so that 999,960 ns reads as 1.0 ms, never as 1000.0 µs.
        if round(abs(time_ns) / size, 1) < 1_000:
            return f"{time_ns / size:.1f} {unit}"
    # Seconds have no larger unit, whatever the time.
    return f"{time_ns / 1_000_000_000:.2f} s"
