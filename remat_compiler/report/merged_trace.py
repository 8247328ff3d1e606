"""The traces of a dump's graphs as one, beside what torch's profiler recorded if it is given.

A plan's forward begins where that of its graph begins in the profile, and so does its backward, but not before the
plan's forward is over: its times stay the modelled ones.  Events of the profile stay as they are.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from remat_compiler.errors import FormatError, OptionError
from remat_compiler.files import read_bounded
from remat_compiler.report.dump import TIMELINE_FILE, read_dump
from remat_compiler.report.profile_places import GraphTrace, Place, is_timed
from remat_compiler.report.trace_events import BACKWARD, FIRST_PID, Event, document, renumbered

LARGEST_PROFILE: Final = 2**31
"""Bytes of the largest profile that is read."""

_GZIP: Final = b"\x1f\x8b"
_GRID_NS: Final = 125
"""Beside a profile, times are multiples of it: eighths of a microsecond are exact however large the time is, while
rounded times make slices overlap."""


def read_graph_traces(directory: Path) -> list[GraphTrace]:
    """The traces of a dump, in the order of its graphs.

    Raises:
        OptionError: There is no such folder, it cannot be read, or it holds no trace.
        FormatError: A trace in it cannot be read.
    """
    return [_graph_trace(file, text) for file, text in read_dump(directory, TIMELINE_FILE)]


def _graph_trace(file: Path, text: bytes) -> GraphTrace:
    fields = _parsed(file, text)
    try:
        about, events = fields["otherData"], tuple(fields["traceEvents"])
        made = GraphTrace(str(about["graph"]), str(about["compile_id"]), int(about["boundary_ns"]), events)
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(str(file), f"it is no trace of a plan ({type(error).__name__}: {error})") from error
    for event in events:
        if not all(isinstance(event.get(key), int) for key in ("pid", "tid")) or not (
            event.get("ph") == "M" or ("cat" in event and is_timed(event))
        ):
            raise FormatError(str(file), f"it is no trace of a plan: it has the event {event}")
    return made


def read_profile(path: Path) -> dict[str, Any]:
    """The trace that ``torch.profiler.profile.export_chrome_trace`` wrote to `path`, compressed or not.

    Raises:
        OptionError: It cannot be read.
        FormatError: It is no trace.
    """
    try:
        text = read_bounded(path, LARGEST_PROFILE)
        text = gzip.decompress(text) if text.startswith(_GZIP) else text
    except (OSError, EOFError, zlib.error) as error:
        raise OptionError(f"the profile {path} cannot be read: {error}") from error
    return _parsed(path, text)


def _parsed(file: Path, text: bytes) -> dict[str, Any]:
    """The fields of a trace, whose events are objects."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(str(file), f"expected JSON ({error})") from error
    # Both forms of the format: an object, or the events alone.
    fields = {"traceEvents": found} if isinstance(found, list) else found
    events = fields.get("traceEvents") if isinstance(fields, dict) else None
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise FormatError(str(file), 'expected a trace: an object with a list "traceEvents" of objects')
    return fields


def merged(
    graphs: Sequence[GraphTrace],
    profile: Mapping[str, Any] | None = None,
    places: Mapping[str, Place] = MappingProxyType({}),
) -> str:
    """One trace of `graphs`, and of `profile` if there is one.

    Args:
        graphs: The graphs.
        profile: A profile; without one, each graph begins at 0.
        places: Where graphs stand in it, by name; the others are left out.

    Raises:
        OptionError: The profile has plans already.
    """
    numbered = [(graph, [renumbered(event, i) for event in graph.events]) for i, graph in enumerate(graphs)]
    if profile is None:
        return document({"displayTimeUnit": "ns"}, [event for _, events in numbered for event in events])
    recorded = profile["traceEvents"]
    if any(isinstance(event.get("pid"), int) and event["pid"] >= FIRST_PID for event in recorded):
        raise OptionError("the profile has plans in it already; give the file that the profiler wrote")
    moved = [
        _placed(event, graph, places[graph.name])
        for graph, events in numbered
        if graph.name in places
        for event in events
    ]
    return document({key: value for key, value in profile.items() if key != "traceEvents"}, [*recorded, *moved])


def _placed(event: Event, graph: GraphTrace, place: Place) -> Event:
    """An event of a plan, moved to where its part of the step stands in the profile."""
    if "ts" not in event:
        return event
    start_ns = place.forward_ns
    if event["cat"] == BACKWARD and place.backward_ns is not None:
        start_ns = max(start_ns, place.backward_ns - graph.boundary_ns)
    begin_ns = start_ns + round(event["ts"] * 1_000)
    moved = {**event, "ts": _on_grid(begin_ns)}
    if "dur" in event:
        # From the moved ends, so that slices that follow each other still do.
        moved["dur"] = _on_grid(begin_ns + round(event["dur"] * 1_000)) - moved["ts"]
    return moved


def _on_grid(time_ns: int) -> float:
    """Microseconds."""
    return time_ns // _GRID_NS * (_GRID_NS / 1_000)
