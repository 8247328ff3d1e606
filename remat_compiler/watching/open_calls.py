"""The calls of a thread whose backward has not run."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar
from weakref import ref

from remat_compiler.step_model.graph_memory import GraphMemory
from remat_compiler.step_model.known_steps import Place
from remat_compiler.step_model.running_step import Patience, RunningStep, ThreadSteps


class Watched(Protocol):
    """A graph whose calls are watched."""

    def noted_memory(self, note: Any) -> GraphMemory | None:
        """The memory of a call, from what the graph noted of it; `None` if that is not known."""
        ...


G = TypeVar("G", bound=Watched)


@dataclass(slots=True, eq=False)
class OpenCall(Generic[G]):
    """A call whose backward has not run.

    Attributes:
        node: Autograd's node of the graph, which lives as long as what the forward saved.
        graph: The graph.
        note: What the graph noted of the call: less than its memory, which few ask for.
        step: The step that is watched; `None` for a call of a known step while nothing is to be learnt.
        call: Its number in that step.
    """

    node: ref[Any]
    graph: G
    note: Any
    step: RunningStep[G] | None
    call: int

    @property
    def memory(self) -> GraphMemory | None:
        """The memory of its graph at the sizes of the call; `None` if that is not known."""
        return self.graph.noted_memory(self.note)


class Here(threading.local, Generic[G]):
    """The state of one thread.

    Attributes:
        open: Each call whose backward has not run, by the identity of its node.
        known: The place of the latest call in a known step, see `known_steps`.
        steps: The steps that are watched.
    """

    def __init__(self, patience: Patience | None = None) -> None:
        self.open: dict[int, OpenCall[G]] = {}
        self.known: Place | None = None
        self.steps: ThreadSteps[G] = ThreadSteps(Patience() if patience is None else patience)

    @property
    def before(self) -> Place | None:
        """The place of the call before; `None` if the next call begins a step."""
        # A step begins when no call is open, whatever was called last.
        return self.known if self.open else None

    def forget_dropped(self) -> None:
        """Remove calls whose outputs are gone."""
        # A copy, and `pop` with a default: autograd's thread removes entries at the same time.
        for key, one in tuple(self.open.items()):
            if one.node() is None:
                self.open.pop(key, None)
