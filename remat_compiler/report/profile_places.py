"""Where the graphs of a dump stand in what torch's profiler recorded.

Torch-Compiled Region: 0/0         the call of compiled code, by Dynamo's name of the compilation
  CompiledFunction                 the forward of a graph
CompiledFunctionBackward           its backward, which has the same sequence number
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from remat_compiler.errors import OptionError
from remat_compiler.report.trace_events import Event

REGION: Final = "Torch-Compiled Region: "
"""What a profile calls a compiled function, followed by the name of the compilation."""


@dataclass(frozen=True, slots=True)
class GraphTrace:
    """The trace of one graph, as its dump has it.

    Attributes:
        name: Name of the graph.
        compile_id: Dynamo's name of its compilation, or empty.
        boundary_ns: When its backward begins.
        events: Its events.
    """

    name: str
    compile_id: str
    boundary_ns: int
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a graph stands in a profile.

    Attributes:
        forward_ns: When its forward begins.
        backward_ns: When its backward begins, or `None` if the profile does not have it.
    """

    forward_ns: int
    backward_ns: int | None


def places_in(recorded: Sequence[Event], graphs: Sequence[GraphTrace], call: int = 0) -> dict[str, Place]:
    """Where graphs stand in a profile, by name; those that it does not have are left out.

    Args:
        recorded: The events of the profile.
        graphs: The graphs.
        call: Which call of each compiled function: 0 for the first one of the profile, -1 for the last.

    Raises:
        OptionError: The profile has no such call of any graph.
    """
    slices = [event for event in recorded if event.get("ph") == "X" and is_timed(event) and "dur" in event]
    places, calls = {}, 0
    for graph in graphs:
        regions = sorted((one for one in slices if _is_call_of(one, graph)), key=_begin_ns)
        calls = max(calls, len(regions))
        if -len(regions) <= call < len(regions):
            # Several graphs of one compilation are called in their order; several variants stand at the one call.
            same = [other.name for other in graphs if other.compile_id == graph.compile_id]
            places[graph.name] = _place(slices, regions[call], same.index(graph.name), len(same))
    if places:
        return places
    if calls:
        raise OptionError(f"got call {call}, and the profile has {calls} calls of a planned graph; the first one is 0")
    wanted = sorted({f"{REGION}{graph.compile_id or '?'}" for graph in graphs})
    have = sorted({str(one["name"]) for one in slices if str(one["name"]).startswith(REGION)})
    raise OptionError(
        f"the profile has no call of a planned graph: expected {' or '.join(wanted)}, and it has "
        f"{', '.join(have) or 'no compiled function'}; dump and profile must come from one run, and the profile from "
        "a step after the first one"
    )


def _place(slices: Sequence[Event], region: Event, number: int, of: int) -> Place:
    """The place of the graph that is `number` among those of a compilation."""
    inside = sorted(
        (one for one in slices if one["name"] == "CompiledFunction" and _is_within(one, region)), key=_begin_ns
    )
    if not inside:
        return Place(_begin_ns(region), None)
    forward = inside[number] if len(inside) == of else inside[0]
    sequence = forward.get("args", {}).get("Sequence number")
    backward = (
        _begin_ns(one)
        for one in slices
        if one["name"] == "CompiledFunctionBackward"
        and sequence is not None
        and one.get("args", {}).get("Sequence number") == sequence
        and _begin_ns(one) >= _begin_ns(forward)
    )
    return Place(_begin_ns(forward), min(backward, default=None))


def is_timed(event: Event) -> bool:
    """Whether an event has a name, and times that are numbers."""
    times = [event.get("ts"), event.get("dur", 0)]
    return "name" in event and all(isinstance(time, int | float) and math.isfinite(time) for time in times)


def _is_call_of(event: Event, graph: GraphTrace) -> bool:
    name = f"{REGION}{graph.compile_id}"
    return bool(graph.compile_id) and (event["name"] == name or str(event["name"]).startswith(f"{name} "))


def _is_within(event: Event, outer: Event) -> bool:
    same_thread = (event.get("pid"), event.get("tid")) == (outer.get("pid"), outer.get("tid"))
    return same_thread and outer["ts"] <= event["ts"] <= outer["ts"] + outer["dur"]


def _begin_ns(event: Event) -> int:
    return round(float(event["ts"]) * 1_000)
