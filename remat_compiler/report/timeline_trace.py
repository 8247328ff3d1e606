"""The plan as a trace that Perfetto and chrome://tracing show: operators, copies and live bytes over modelled time.

One process with these tracks:

    live bytes planned / without a budget / budget    counters; the first one to the byte what the simulator says
    step                                              the forward and the backward as a whole
    forward, backward, recomputed                     operators; arrows lead from their first run to repetitions
    copies out, copies back, waits                    what a plan with transfers moves, and what waits for it

Each event has the part of the step that it belongs to as its category.  The same plan gives the same bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import RematProblem
from remat_compiler.report.curve import MemoryCurve
from remat_compiler.report.plan_report import PlanReport, StorageDecision
from remat_compiler.report.trace_events import (
    BACKWARD,
    FORWARD,
    Event,
    as_flow,
    begin,
    counter_event,
    document,
    name_event,
    slice_event,
)
from remat_compiler.simulate.schedule import Schedule, StepTime, schedule
from remat_compiler.simulate.timeline import simulate

UNTIMED_NS = 1_000
"""Length of every operator if no times are known."""
MEMORY, PLANNED = "live bytes", "planned"
"""Name of the counter of memory, and of its series for the plan."""

_STEP, _FORWARD, _BACKWARD, _RECOMPUTED, _WAITS, _COPIES = range(1, 7)
_THREADS = {_STEP: "step", _FORWARD: "forward", _BACKWARD: "backward", _RECOMPUTED: "recomputed"}
"""Threads of every graph by number; with transfers, that of the waits follows, and two for the copies of each tier."""


def timeline_trace(report: PlanReport, problem: RematProblem, plan: Plan, compile_id: str = "") -> str:
    """The trace of one graph as JSON, one event a line.

    Args:
        report: The report of the plan.
        problem: The planner's problem.
        plan: A valid plan of it.
        compile_id: Dynamo's name of the compilation, such as ``0/0``; empty if there is none.
    """
    costs = problem.costs
    if not any(costs.time_ns[op] for op in plan.steps):
        costs = replace(costs, time_ns=(UNTIMED_NS,) * len(costs.time_ns))
    live = simulate(problem.graph, costs, plan).live_bytes.tolist()
    trace = _Trace(report, replace(problem, costs=costs), plan, schedule(problem.graph, costs, plan), live)
    events = [
        *trace.names(),
        *trace.parts(),
        *trace.operators(),
        *sorted(trace.copies(), key=begin),
        *trace.memory(None if report.memory is None else report.memory.before),
    ]
    about = {"graph": report.graph_name, "compile_id": compile_id}
    return document({"displayTimeUnit": "ns", "otherData": about}, events)


@dataclass(frozen=True, slots=True)
class _Trace:
    """The events of one graph; times of the untimed are made up before."""

    report: PlanReport
    problem: RematProblem
    plan: Plan
    times: Schedule
    live_bytes: list[int]

    @property
    def boundary_ns(self) -> int:
        """When the forward is over, the copies that it awaits included; the end of the step if there is no backward."""
        at = self.plan.boundary
        if at == len(self.times.steps):
            return self.times.total_ns
        return max([self.times.steps[at].waits_from_ns, *self._ends_of_forward_copies()])

    def _ends_of_forward_copies(self) -> Iterator[int]:
        # No copy is under way from one graph to the other.
        for one, copy in zip(self.plan.transfers, self.times.copies):
            if one.out_after <= self.plan.boundary:
                yield copy.out_end_ns
            if one.back_before < self.plan.boundary:
                yield copy.back_end_ns

    def names(self) -> Iterator[Event]:
        """Names of the process and of its threads, in the order in which they are to be shown."""
        yield name_event("process_name", 0, name=f"remat {self.report.graph_name}, as planned")
        yield name_event("process_sort_index", 0, sort_index=-1)
        threads = {**_THREADS, **({_WAITS: "waits for copies"} if self.plan.transfers else {})}
        for thread, name in {**threads, **{number: name for name, number in self._copying().items()}}.items():
            yield name_event("thread_name", thread, name=name)
            yield name_event("thread_sort_index", thread, sort_index=thread)

    def parts(self) -> Iterator[Event]:
        """The forward and the backward as a whole, with what the report says of the step."""
        report, boundary_ns = self.report, self.boundary_ns
        figures = {
            "peak_bytes": report.peak_bytes,
            "estimated_peak_bytes": report.estimated_peak_bytes,
            "peak_before_bytes": report.peak_before_bytes,
            "budget_bytes": report.budget_bytes,
            "saved_bytes": report.saved_bytes,
            "planner": report.planner,
        }
        figures = {name: value for name, value in figures.items() if value is not None}
        yield slice_event(FORWARD, _STEP, FORWARD, 0, boundary_ns, figures)
        if self.plan.boundary < len(self.plan.steps):
            yield slice_event(BACKWARD, _STEP, BACKWARD, boundary_ns, self.times.total_ns, figures)

    def operators(self) -> Iterator[Event]:
        """Each step of the plan, what it waits for, and arrows to the repetitions of its operator."""
        decisions = {one.storage: one for one in self.report.decisions}
        runs = Counter(self.plan.steps)
        first: dict[int, int] = {}
        left = dict(runs)
        for step, (op_id, time) in enumerate(zip(self.plan.steps, self.times.steps)):
            op, part = self.problem.graph.ops[op_id], self._part(step)
            again = op_id in first
            first.setdefault(op_id, step)
            left[op_id] -= 1
            yield from self._waits(step, time)
            thread = _RECOMPUTED if again else _FORWARD if part == FORWARD else _BACKWARD
            args = {"op": op.name, "step": step, "live_bytes": self.live_bytes[step], **self._facts(op_id, decisions)}
            if again:
                args["first_run_at_step"] = first[op_id]
            event = slice_event(op.target or op.name, thread, part, time.begin_ns, time.end_ns, args)
            # One arrow through all runs of an operator: it leaves each but the last, and enters each but the first.
            yield as_flow(event, op_id, enters=again, leaves=left[op_id] > 0) if runs[op_id] > 1 else event
        if self.times.drag_ns:
            begin_ns = self.times.total_ns - self.times.drag_ns
            yield slice_event("slowed down by copies", _WAITS, BACKWARD, begin_ns, self.times.total_ns, {})

    def _waits(self, step: int, time: StepTime) -> Iterator[Event]:
        """What `step` waits; between forward and backward, both may wait."""
        middle_ns = self.boundary_ns if step == self.plan.boundary else time.waits_from_ns
        ends = ((FORWARD, time.waits_from_ns, middle_ns), (self._part(step), middle_ns, time.begin_ns))
        for part, begin_ns, end_ns in ends:
            if begin_ns < end_ns:
                yield slice_event("waits for a copy", _WAITS, part, begin_ns, end_ns, {"step": step})

    def _part(self, step: int) -> str:
        return FORWARD if step < self.plan.boundary else BACKWARD

    def _facts(self, op_id: int, decisions: Mapping[str, StorageDecision]) -> dict[str, Any]:
        """What is known of an operator: what it makes, where it comes from, what becomes of its results."""
        graph, op = self.problem.graph, self.problem.graph.ops[op_id]
        made = {graph.storages[s].name: graph.storages[s].size_bytes for s in op.writes}
        decided = [decisions[name] for name in made if name in decisions]
        facts = {
            "bytes": sum(made.values()),
            "makes": made if len(made) > 1 else {},
            "workspace_bytes": max(self.problem.costs.workspace_bytes[op_id], 0),
            "decision": "; ".join(f"{one.decision.value} {one.storage}: {one.reason}" for one in decided),
            "module": op.module,
            "source": op.source,
        }
        return {name: value for name, value in facts.items() if value or name == "bytes"}

    def copies(self) -> Iterator[Event]:
        """The copies of all transfers."""
        threads, boundary, transfers = self._copying(), self.plan.boundary, self.plan.transfers
        for i, (one, life, copy) in enumerate(zip(transfers, self.times.lives, self.times.copies)):
            storage = self.problem.graph.storages[one.storage]
            args = {"storage": storage.name, "bytes": storage.size_bytes}
            # A value that was copied out before still is where it was copied to, and comes back from there.
            tier = transfers[life.first].tier.value
            if life.first == i:
                part = FORWARD if one.out_after <= boundary else BACKWARD
                thread = threads[f"copies out to {tier}"]
                yield slice_event(f"out {storage.name}", thread, part, copy.out_begin_ns, copy.out_end_ns, args)
            thread = threads[f"copies back from {tier}"]
            part = self._part(one.back_before)
            yield slice_event(f"back {storage.name}", thread, part, copy.back_begin_ns, copy.back_end_ns, args)

    def _copying(self) -> dict[str, int]:
        """Threads of copies by name: copies of one tier and direction follow each other."""
        tiers = sorted({one.tier.value for one in self.plan.transfers})
        names = [name for tier in tiers for name in (f"copies out to {tier}", f"copies back from {tier}")]
        return {name: _COPIES + i for i, name in enumerate(names)}

    def memory(self, before: MemoryCurve | None) -> Iterator[Event]:
        """The counters.  Each ends at 0, since they count the memory of one step."""
        for step, (size_bytes, time) in enumerate(zip(self.live_bytes, self.times.steps)):
            yield counter_event(MEMORY, PLANNED, self._part(step), time.begin_ns, size_bytes)
        yield counter_event(MEMORY, PLANNED, BACKWARD, self.times.total_ns, 0)
        budget = self.report.budget_bytes
        if budget is not None:
            yield counter_event(MEMORY, "budget", FORWARD, 0, budget)
            yield counter_event(MEMORY, "budget", BACKWARD, self.times.total_ns, 0)
        if before is None or not before.columns:
            return
        scale, shown = 1 if before.timed else UNTIMED_NS, -1
        for i, size_bytes in enumerate(before.columns):
            at_ns = before.total_ns * scale * i // len(before.columns)
            # Equal neighbours make one event, which keeps the file small.
            if size_bytes != shown:
                part = FORWARD if at_ns < before.boundary_ns * scale else BACKWARD
                yield counter_event(MEMORY, "without a budget", part, at_ns, size_bytes)
            shown = size_bytes
        yield counter_event(MEMORY, "without a budget", BACKWARD, before.total_ns * scale, 0)
