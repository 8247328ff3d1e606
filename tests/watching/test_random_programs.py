"""What autograd does in random programs becomes the events that the program made happen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from remat_compiler.step_model.events import Turn
from remat_compiler.step_model.graph_memory import GraphMemory
from remat_compiler.step_model.step import Step
from remat_compiler.watching.step_watch import StepWatch
from step_model.whole_log import Asked, Called, Ended, Entry, Log, Reading, logs


def graph_function() -> Any:
    """A compiled graph as far as autograd shows it: AOTAutograd's node is of this kind, too."""

    class Squared(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, during: Callable[[], None]) -> Tensor:
            ctx.save_for_backward(x)
            ctx.during = during
            return x * x

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            ctx.during()
            return 2 * gradients[0] * ctx.saved_tensors[0], None

    return Squared


@dataclass
class Program:
    """Runs a log for real.

    Attributes:
        outputs: The outputs of the calls that are held.
        within: For a call, another one whose backward runs within its own.
        steps: The turns of each complete step, and the calls that were set aside, by the numbers of the log.
    """

    outputs: dict[int, Tensor] = field(default_factory=dict)
    within: dict[int, Callable[[], None]] = field(default_factory=dict)
    steps: list[tuple[tuple[tuple[Turn, int], ...], frozenset[int]]] = field(default_factory=list)
    calls: int = 0

    def __post_init__(self) -> None:
        self.watch: StepWatch[Any] = StepWatch(self._completes)
        self.graphs = {name: graph_function() for name in "fg"}
        self.parameters = {number: nn.Parameter(torch.ones(2)) for number in (1, 2)}

    def _completes(self, step: Step[Any]) -> None:
        turns = tuple((turn, number_of(step.memories[call])) for turn, call in step.turns)
        self.steps.append((turns, frozenset(number_of(one.memory) for one in step.aside)))

    def call(self, entry: Called) -> None:
        """A forward."""
        call, parameter = self.calls, self.parameters[min(entry.parameters)]
        self.calls += 1
        self.watch.begins_forward()
        output = self.graphs[entry.graph].apply(parameter, lambda: self.within.pop(call, int)())
        self.watch.forward(entry.graph, [parameter, None], [output], GraphMemory(0, call, 0, 0))
        self.outputs[call] = output

    def end(self, entry: Ended, *, forget: bool) -> None:
        """A backward, or what is let go of."""
        if entry.turn is Turn.DROPPED:
            del self.outputs[entry.call]
        else:
            output = self.outputs[entry.call]
            output.backward(torch.ones_like(output), retain_graph=entry.turn is Turn.KEPT)
            del output
            if forget and entry.turn is Turn.BACKWARD:
                del self.outputs[entry.call]

    def evaluate(self) -> None:
        """A call that autograd does not follow."""
        with torch.no_grad():
            output = self.graphs["f"].apply(self.parameters[1], int)
        self.watch.begins_forward()
        self.watch.forward("f", [self.parameters[1], None], [output])

    def fail(self) -> None:
        """A forward that ends with an exception, and a backward that one ends before it comes to the graph."""
        self.watch.begins_forward()
        if self.outputs:
            output = next(iter(self.outputs.values()))
            failing = output.sum()
            failing.register_hook(_fails)
            with pytest.raises(ArithmeticError):
                failing.backward(retain_graph=True)


def _fails(gradient: Tensor) -> None:
    raise ArithmeticError


def number_of(memory: GraphMemory | None) -> int:
    """The number of a call in the log."""
    assert memory is not None
    return memory.held_bytes


@settings(max_examples=40)
@given(logs(most=25), st.data())
def test_the_steps_of_a_program_are_those_of_its_log(log: list[Entry], data: st.DataObject) -> None:
    program, i = Program(), 0
    while i < len(log):
        entry, after = log[i], log[i + 1] if i + 1 < len(log) else None
        noise = data.draw(st.sampled_from([None, None, program.evaluate, program.fail]))
        if noise is not None:
            noise()
        if isinstance(entry, Asked):
            program.watch.begin()
        elif isinstance(entry, Called):
            program.call(entry)
        elif runs(entry) and runs(after) and entry.call != after.call and data.draw(st.booleans()):
            # The first one runs within the second, and so ends before it.
            program.within[after.call] = lambda entry=entry: program.end(entry, forget=False)  # type: ignore[misc]
            program.end(after, forget=False)
            i += 1
        else:
            program.end(entry, forget=data.draw(st.booleans()))
        i += 1
    read = Reading(Log(log))
    assert program.steps == [(one.turns, one.aside) for one in read.found]
    held = [number_of(one.memory) for one in program.watch.current.held_calls]
    assert held == sorted(read.now.open_calls())
    # The table has the same calls, each as long as autograd may run its backward.
    here = program.watch.here
    here.forget_dropped()
    assert sorted(number_of(one.note) for one in here.open.values()) == held


def runs(entry: Entry | None) -> Any:
    """Whether it is a backward."""
    return isinstance(entry, Ended) and entry.turn is not Turn.DROPPED
