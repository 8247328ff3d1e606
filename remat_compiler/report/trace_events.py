"""Chrome's trace event format, which Perfetto and chrome://tracing share: https://perfetto.dev/docs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Event = dict[str, Any]

PROCESS = 1
"""Number of the process; those of its threads follow."""
FORWARD, BACKWARD = "forward", "backward"
"""Categories of events: the part of the step that they belong to."""


def document(head: Mapping[str, Any], events: Sequence[Event]) -> str:
    """A trace of `events`, one a line, with `head` as its other fields."""
    fields = "".join(f"{json.dumps(name)}:{json.dumps(value)},\n" for name, value in head.items())
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
    return f'{{{fields}"traceEvents":[\n{lines}\n]}}\n'


def name_event(what: str, thread: int, **args: Any) -> Event:
    """The name, or the place among the others, of a thread, or of the process (thread 0)."""
    return {"ph": "M", "name": what, "pid": PROCESS, "tid": PROCESS + thread, "args": args}


def slice_event(name: str, thread: int, part: str, begin_ns: int, end_ns: int, args: Mapping[str, Any]) -> Event:
    """A bar from `begin_ns` to `end_ns` on a thread."""
    # The format counts in microseconds; readers round to nanoseconds.
    times = {"ts": begin_ns / 1_000, "dur": (end_ns - begin_ns) / 1_000}
    where = {"pid": PROCESS, "tid": PROCESS + thread}
    return {"ph": "X", "name": name, "cat": part, **where, **times, "args": dict(args)}


def begin(event: Event) -> tuple[float, float]:
    """Sort key by which slices of one thread stand in the order in which they run."""
    # Of two that begin at once, the first takes no time.
    return event["ts"], event["dur"]


def counter_event(name: str, series: str, part: str, at_ns: int, value: int) -> Event:
    """The value that `series` of a counter has from `at_ns` on."""
    where = {"pid": PROCESS, "tid": PROCESS}
    return {"ph": "C", "name": name, "cat": part, **where, "ts": at_ns / 1_000, "args": {series: value}}


def as_flow(event: Event, flow: int, *, enters: bool, leaves: bool) -> Event:
    """`event` as one of those that an arrow leads through; `flow` is its number."""
    # The name must be a text in hexadecimal digits.
    ends = ({"flow_in": True} if enters else {}) | ({"flow_out": True} if leaves else {})
    return {**event, "bind_id": f"0x{event['pid'] << 32 | flow:x}", **ends}
