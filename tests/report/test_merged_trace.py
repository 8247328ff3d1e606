"""Plans beside a profile: where they stand in it, that nothing overlaps or is lost, and that mistakes are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planned import report
from profiles import START_US, call_of, dumped, profile_of
from remat_compiler.errors import FormatError, OptionError
from remat_compiler.report.merged_trace import merged, read_graph_traces, read_profile
from remat_compiler.report.profile_places import GraphTrace, Place, places_in
from trace_format import check_format, events_of, ns, series_of, slices_on


def graphs(tmp_path: Path, *named: tuple[str, str]) -> list[GraphTrace]:
    return read_graph_traces(dumped(tmp_path / "dump", *named))


def merged_events(profile: dict[str, Any], made: list[GraphTrace], call: int = 0) -> list[dict[str, Any]]:
    """The plan's own events beside a profile."""
    events = events_of(merged(made, profile, places_in(profile["traceEvents"], made, call)))
    assert events[: len(profile["traceEvents"])] == profile["traceEvents"], "the profile stays as it is"
    return events[len(profile["traceEvents"]) :]


def starts_us(events: list[dict[str, Any]]) -> dict[str, float]:
    """When the forward and the backward of the plan begin."""
    return {event["name"]: event["ts"] for event in slices_on(events, "step")}


def test_forward_and_backward_begin_where_the_profile_has_them(tmp_path: Path) -> None:
    (graph,) = made = graphs(tmp_path, ("graph0", "0/0"))
    events = merged_events(profile_of(call_of("1/0", START_US), call_of("0/0", START_US + 1000, 7)), made)
    check_format(events)
    begin = starts_us(events)
    assert begin["forward"] == pytest.approx(START_US + 1010, abs=0.13)
    assert begin["backward"] == pytest.approx(START_US + 1200, abs=0.13)
    assert graph.boundary_ns == 4_000
    assert max(series_of(events, "planned")) == report().estimated_peak_bytes


def test_a_backward_never_begins_before_the_plans_forward_is_over(tmp_path: Path) -> None:
    (graph,) = graphs(tmp_path, ("graph0", "0/0"))
    longer = GraphTrace(graph.name, graph.compile_id, 10**6, graph.events)
    profile = profile_of(call_of("0/0", START_US, 7))
    begin = starts_us(merged_events(profile, [longer]))
    # Both moved by as much: the backward begins where it does in the plan.
    assert begin["backward"] - begin["forward"] == pytest.approx(graph.boundary_ns / 1_000, abs=0.13)


def test_another_call_and_one_without_a_backward(tmp_path: Path) -> None:
    made = graphs(tmp_path, ("graph0", "0/0"))
    profile = profile_of(call_of("0/0", START_US, 7), call_of("0/0", START_US + 5000, 9, backward=False))
    for call in (1, -1):
        begin = starts_us(merged_events(profile, made, call))
        assert begin["forward"] == pytest.approx(START_US + 5010, abs=0.13)
        assert begin["backward"] - begin["forward"] == pytest.approx(4.0, abs=0.13)
    with pytest.raises(OptionError, match="got call 2, and the profile has 2 calls"):
        places_in(profile["traceEvents"], made, 2)


def test_graphs_of_one_compilation_stand_in_their_order_and_variants_at_the_same_call(tmp_path: Path) -> None:
    made = graphs(tmp_path, ("graph0", "0/0"), ("graph1", "0/0"), ("graph2", "3/0"))
    both = places_in(call_of("0/0", 1000.0, 7, 8), made)
    assert both == {"graph0": Place(1_010_000, 1_200_000), "graph1": Place(1_030_000, 1_180_000)}
    one = places_in(call_of("0/0", 1000.0, 7), made)
    assert one["graph0"] == one["graph1"] == Place(1_010_000, 1_200_000)


def test_processes_threads_and_arrows_of_graphs_are_apart(tmp_path: Path) -> None:
    made = graphs(tmp_path, ("graph0", "0/0"), ("graph1", "1/0"))
    events = events_of(merged(made))
    check_format(events)
    assert len(events) == sum(len(graph.events) for graph in made)
    by_process = {event["pid"] for event in events}
    assert len(by_process) == 2
    assert len({(event["pid"], event["tid"]) for event in events}) == len({event["tid"] for event in events})
    arrows = [
        {event["bind_id"] for event in events if event["pid"] == pid and "bind_id" in event} for pid in by_process
    ]
    assert len(arrows[0]) == len(arrows[1]) == 1
    assert arrows[0] != arrows[1]


@given(start_ns=st.integers(0, 5 * 10**15), gap_ns=st.integers(0, 10**9), data=st.data())
def test_slices_do_not_overlap_wherever_they_are_moved(start_ns: int, gap_ns: int, data: st.DataObject) -> None:
    times = data.draw(st.lists(st.integers(0, 3_000), min_size=1, max_size=20))
    at, events = 0, []
    for i, time in enumerate(times):
        part = "forward" if i <= len(times) // 2 else "backward"
        slot = {"pid": 5_000_000, "tid": 5_000_001, "ts": at / 1_000, "dur": time / 1_000, "args": {}}
        events.append({"ph": "X", "name": "op", "cat": part, **slot})
        at += time
    boundary_ns = sum(times[: len(times) // 2 + 1])
    graph = GraphTrace("graph0", "0/0", boundary_ns, tuple(events))
    place = Place(start_ns, start_ns + gap_ns)
    moved = events_of(merged([graph], profile_of(), {"graph0": place}))
    names = [{"ph": "M", "name": "thread_name", "pid": 5_000_000, "tid": 5_000_001, "args": {"name": "op"}}]
    check_format([*names, *moved])
    assert abs(ns(moved[0]["ts"]) - start_ns) <= 125
    assert all(event["ts"] * 8 == int(event["ts"] * 8) for event in moved), "exact however large the time is"


@pytest.mark.parametrize("text", ["{", "[]", '{"traceEvents": []}', '{"otherData": 3, "traceEvents": []}'])
def test_a_trace_of_a_dump_that_cannot_be_read_is_told(tmp_path: Path, text: str) -> None:
    directory = dumped(tmp_path, ("graph0", "0/0"))
    (directory / "graph0" / "timeline.perfetto.json").write_text(text)
    with pytest.raises(FormatError, match=r"timeline\.perfetto\.json: "):
        read_graph_traces(directory)


def test_a_profile_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be read"):
        read_profile(tmp_path / "nowhere.json")
