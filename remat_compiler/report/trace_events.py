"""Chrome's trace event format, which Perfetto, chrome://tracing and torch's profiler share: https://perfetto.dev/docs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Event = dict[str, Any]

FIRST_PID = 5_000_000
"""Process of the first graph, above all process numbers of Linux, so that no profiler's process has it."""
IDS_PER_GRAPH = 100
"""Numbers for one graph's process and threads; Perfetto wants threads of different processes to differ, too."""
FORWARD, BACKWARD = "forward", "backward"
"""Categories of events: the part of the step that they belong to."""


def document(head: Mapping[str, Any], events: Sequence[Event]) -> str:
    """A trace of `events`, one a line, with `head` as its other fields."""
    fields = "".join(f"{json.dumps(name)}:{json.dumps(value)},\n" for name, value in head.items())
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
    return f'{{{fields}"traceEvents":[\n{lines}\n]}}\n'


def name_event(what: str, thread: int, **args: Any) -> Event:
    """The name, or the place among the others, of a thread of the first graph, or of its process (thread 0)."""
    return {"ph": "M", "name": what, "pid": FIRST_PID, "tid": FIRST_PID + thread, "args": args}


def slice_event(name: str, thread: int, part: str, begin_ns: int, end_ns: int, args: Mapping[str, Any]) -> Event:
    """A bar from `begin_ns` to `end_ns` on a thread."""
    # The format counts in microseconds; readers round to nanoseconds.
    times = {"ts": begin_ns / 1_000, "dur": (end_ns - begin_ns) / 1_000}
    where = {"pid": FIRST_PID, "tid": FIRST_PID + thread}
    return {"ph": "X", "name": name, "cat": part, **where, **times, "args": dict(args)}


def begin(event: Event) -> tuple[float, float]:
    """Sort key by which slices of one thread stand in the order in which they run."""
    # Of two that begin at once, the first takes no time.
    return event["ts"], event["dur"]


def counter_event(name: str, series: str, part: str, at_ns: int, value: int) -> Event:
    """The value that `series` of a counter has from `at_ns` on."""
    where = {"pid": FIRST_PID, "tid": FIRST_PID}
    return {"ph": "C", "name": name, "cat": part, **where, "ts": at_ns / 1_000, "args": {series: value}}


def as_flow(event: Event, flow: int, *, enters: bool, leaves: bool) -> Event:
    """`event` as one of those that an arrow leads through; `flow` names the arrow within its graph."""
    # The name must be a text in hexadecimal digits, unlike that of any other graph.
    ends = ({"flow_in": True} if enters else {}) | ({"flow_out": True} if leaves else {})
    return {**event, "bind_id": f"0x{event['pid'] << 32 | flow:x}", **ends}


def renumbered(event: Event, graph: int) -> Event:
    """`event` of a graph that is written alone, as that of the graph with another number."""
    offset = graph * IDS_PER_GRAPH
    moved = {**event, "pid": event["pid"] + offset, "tid": event["tid"] + offset}
    if "bind_id" in event:
        moved["bind_id"] = f"0x{int(event['bind_id'], 16) + (offset << 32):x}"
    return moved
