"""Which compiled graphs one training step runs, learnt from the calls themselves.

A step begins with a forward call while no other is open, and is complete when each of its calls has run backward or
was let go of.  Calls are followed by autograd's own node behind their outputs: it lives as long as what the forward
saved, and tells when the backward has run.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Generic, TypeVar

import torch

from remat_compiler import torch_compat
from remat_compiler.costs.op_call import tensors_in
from remat_compiler.simulate.whole_step import Call, Passed, Turn

G = TypeVar("G")


@dataclass(slots=True, eq=False)
class WatchedStep(Generic[G]):
    """The calls of one step.

    Attributes:
        graphs: The distinct graphs, in the order of their first calls.
        calls: The calls in order; each names its graph by its position in `graphs`.
        turns: What happened, in order.
        notes: What `forward` was told of each call.
    """

    graphs: list[G] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    turns: list[tuple[Turn, int]] = field(default_factory=list)
    notes: list[Any] = field(default_factory=list)
    _open: dict[int, frozenset[int]] = field(default_factory=dict)

    @property
    def open_graphs(self) -> list[G]:
        """The graph of each call that holds what its forward saved."""
        return [graph for graph, _ in self.open_calls]

    @property
    def open_calls(self) -> list[tuple[G, Any]]:
        """The same with what was noted of each call."""
        return [(self.graphs[self.calls[call].graph], self.notes[call]) for call in tuple(self._open)]


class StepWatch(Generic[G]):
    """Follows the steps of each thread.

    Args:
        complete: Is told of each complete step, on the thread that ended it (autograd's own, perhaps).
    """

    def __init__(self, complete: Callable[[WatchedStep[G]], None]) -> None:
        self._complete = complete
        self._lock = threading.RLock()
        self._local = threading.local()

    @property
    def current(self) -> WatchedStep[G]:
        """The step that this thread is in; empty between steps."""
        step: WatchedStep[G] | None = getattr(self._local, "step", None)
        if step is None or (step.calls and not step._open):
            step = self._local.step = WatchedStep()
        return step

    def forward(self, graph: G, arguments: Iterable[Any], outputs: Any, note: Any = None) -> None:
        """`graph` was called; nothing is noted of a call that autograd does not follow."""
        node = torch_compat.compiled_backward(outputs)
        if node is None:
            return
        with self._lock:
            step = self.current
            call = len(step.calls)
            position = next((i for i, known in enumerate(step.graphs) if known is graph), len(step.graphs))
            if position == len(step.graphs):
                step.graphs.append(graph)
            step.calls.append(Call(position, _passed(arguments, step._open)))
            step.turns.append((Turn.FORWARD, call))
            step.notes.append(note)
            step._open[call] = frozenset(chain.from_iterable(map(_addresses, tensors_in(outputs))))
        node.register_hook(lambda *_: self._end(step, call, Turn.BACKWARD))
        weakref.finalize(node, self._end, step, call, Turn.DROPPED).atexit = False

    def _end(self, step: WatchedStep[G], call: int, turn: Turn) -> None:
        with self._lock:
            if call not in step._open:
                return
            del step._open[call]
            step.turns.append((turn, call))
            over = not step._open
        if over:
            self._complete(step)


def _passed(arguments: Iterable[Any], makers: dict[int, frozenset[int]]) -> tuple[Passed, ...]:
    """Gradients that the backward of a call with these arguments hands to other operators."""
    found: dict[frozenset[int], Passed] = {}
    for argument, tensor in enumerate(arguments):
        if isinstance(tensor, torch.Tensor) and tensor.requires_grad and not tensor.is_leaf:
            addresses = _addresses(tensor) or frozenset({-1 - argument})
            maker = next((call for call, made in makers.items() if made & addresses), None)
            if addresses not in found:
                found[addresses] = Passed(_num_bytes(tensor), maker, argument)
    return tuple(found.values())


def _addresses(tensor: torch.Tensor) -> frozenset[int]:
    """Addresses of the tensor's memory, which views share; none where it has no memory of its own."""
    return frozenset(part.untyped_storage().data_ptr() for part in torch_compat.dense_parts(tensor))


def _num_bytes(tensor: torch.Tensor) -> int:
    return sum(part.numel() * part.element_size() for part in torch_compat.dense_parts(tensor))
