"""Rules of Chrome's trace event format that Perfetto's importer relies on, checked on the text of a trace."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

NEEDED = {
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "C": {"name", "pid", "ts", "args"},
    "M": {"name", "pid", "tid", "args"},
}
"""Fields that an event of each kind must have."""


def events_of(text: str | bytes) -> list[dict[str, Any]]:
    """The events of a trace."""
    found = json.loads(text)["traceEvents"]
    assert isinstance(found, list)
    return found


def ns(time_us: float) -> int:
    """A time of the format as the importer reads it."""
    return round(time_us * 1_000)


def check_format(events: list[dict[str, Any]]) -> None:
    """Fail unless each event is whole, slices of a thread follow each other, and so do the values of a counter."""
    ends: dict[Any, int] = defaultdict(int)
    named, used = set(), set()
    for event in events:
        assert NEEDED[event["ph"]] <= set(event), event
        if event["ph"] == "M":
            named |= {(event["pid"], event["tid"])} if event["name"] == "thread_name" else set()
        elif event["ph"] == "X":
            track = (event["pid"], event["tid"])
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            assert ns(event["ts"]) >= ends[track], f"overlaps the slice before it: {event}"
            ends[track] = ns(event["ts"]) + ns(event["dur"])
            used.add(track)
        else:
            ((series, value),) = event["args"].items()
            assert isinstance(value, int)
            assert ns(event["ts"]) >= ends[event["pid"], event["name"], series], f"goes back in time: {event}"
            ends[event["pid"], event["name"], series] = ns(event["ts"])
    assert used <= named, "a thread without a name"


def series_of(events: list[dict[str, Any]], series: str) -> list[int]:
    """The values of a series of the counters, in order."""
    return [event["args"][series] for event in events if event["ph"] == "C" and series in event["args"]]


def slices_on(events: list[dict[str, Any]], thread: str) -> list[dict[str, Any]]:
    """The slices on the threads whose names begin with `thread`."""
    names = [event for event in events if event["name"] == "thread_name" and event["args"]["name"].startswith(thread)]
    tracks = {(event["pid"], event["tid"]) for event in names}
    return [event for event in events if event["ph"] == "X" and (event["pid"], event["tid"]) in tracks]
