"""A joint graph in some number of chunks, as the search for how many sees it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from remat_compiler.ir.problem import RematProblem
from remat_compiler.partition.result import Baseline, Partition
from remat_compiler.report.plan_report import ChunkedRegion
from remat_compiler.simulate.timeline import MemoryTimeline


class Chunks(NamedTuple):
    """In how many chunks a joint graph is computed.

    Attributes:
        losses: Most chunks of its losses; 1 for whole ones.
        layers: Most chunks of its layers; likewise.
        attention: Whether attention by one operator is one of these.
    """

    losses: int = 1
    layers: int = 1
    attention: bool = False


WHOLE = Chunks()
NEAR = 0.1
"""Budgets that differ by less than this part are served by as many chunks."""


class Within(Enum):
    """Values of which there is a chunk at a time, or would be: of losses, of layers, or of these with attention."""

    LOSSES = "losses"
    LAYERS = "layers"
    ALL_LAYERS = "all layers"


@dataclass(frozen=True, slots=True)
class Served:
    """What a budget of the graph came to.

    Attributes:
        chunks: In how many the chosen plan was asked for.
        fits: Whether it fits the budget; else it is the one of the smallest peak.
    """

    chunks: Chunks
    fits: bool


def served_alike(known: dict[int, Served], budget_bytes: int) -> Served | None:
    """What the budget is likely to come to, by those before it."""
    # Where nothing fits, nothing fits less.
    short = [one for one, served in known.items() if one >= budget_bytes and not served.fits]
    if short:
        return known[min(short)]
    fitting = [one for one, served in known.items() if served.fits and abs(one - budget_bytes) <= NEAR * budget_bytes]
    return known[min(fitting, key=lambda one: abs(one - budget_bytes))] if fitting else None


class Candidate(Protocol):
    """A joint graph in some number of chunks, ready to be planned."""

    @property
    def chunked(self) -> tuple[ChunkedRegion, ...]:
        """The losses and layers that are in chunks."""
        ...

    @property
    def step_ns(self) -> int:
        """Modelled time of its operators, each executed once."""
        ...

    @property
    def floor_bytes(self) -> int:
        """Peak that no plan of it goes below."""
        ...

    @property
    def before(self) -> Baseline:
        """The step that recomputes nothing."""
        ...

    @property
    def times(self) -> tuple[tuple[str, float], ...]:
        """Name and seconds of each stage so far."""
        ...

    def within_bytes(self, problem: RematProblem, timeline: MemoryTimeline, within: Within) -> int:
        """Bytes of values that are there at the peak, and would be smaller with more chunks.

        Args:
            problem: The planner's problem.
            timeline: A simulated plan of it.
            within: Within what they are; of layers, within whole ones.
        """
        ...

    def planned(self, whole_ns: int | None) -> Partition:
        """Its partition; `NoPlan` if the planner refuses.

        Args:
            whole_ns: `step_ns` of the whole graph; `None` for its own.
        """
        ...
