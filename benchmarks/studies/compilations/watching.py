"""What it costs to watch training steps: microseconds for each call of a planned graph.

    python -m studies.compilations.watching

Each row trains so many tiny compiled functions in one step.  *Forward* and *backward* are the time of a call less what
its compiled code takes of it: medians over all calls, in one process and one thread, the clock's own time taken off.
*Settled* is what all steps but the first few are; in steps that are *not settled* there is something to learn of a
graph, here of one whose forward ran, and no backward.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch

from remat_compiler import torch_compat
from remat_compiler.graphs.steps import COORDINATOR
from remat_compiler.step_budget.compiled_graph import CompiledGraph

OPTIONS = {"memory_budget": "1GiB", "inner": "eager"}


@dataclass
class Nested:
    """Times of calls, in ns, and of what they call once each.

    Attributes:
        outer: The calls.
        inner: What they call.
    """

    outer: list[int] = field(default_factory=list)
    inner: list[int] = field(default_factory=list)

    def added_ns(self) -> float:
        """Median of what the calls take themselves."""
        return statistics.median(outer - inner for outer, inner in zip(self.outer, self.inner, strict=True))

    def clear(self) -> None:
        """Begin anew."""
        self.outer.clear()
        self.inner.clear()


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, nargs="+", default=[1, 10], help="graphs of a step")
    parser.add_argument("--steps", type=int, default=3000, help="steps of each row")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print("| graphs | | forward | backward |\n|--:|---|--:|--:|")
    for count in options.graphs:
        for settled in (True, False):
            forward, backward = (ns / 1000 for ns in measured(count, settled, options.steps))
            print(
                f"| {count} | {'' if settled else 'not '}settled | {forward:.2f} µs | {backward:.2f} µs |", flush=True
            )


def timed(function: Callable[..., Any], times: list[int]) -> Callable[..., Any]:
    """`function`, noting how long each call takes."""

    def run(*arguments: Any) -> Any:
        began = time.perf_counter_ns()
        result = function(*arguments)
        times.append(time.perf_counter_ns() - began)
        return result

    return run


def measured(count: int, settled: bool, steps: int) -> tuple[float, float]:
    """What watching adds to a forward and to a backward, in ns."""
    torch._dynamo.reset()
    forwards, backwards = Nested(), Nested()
    with ExitStack() as stack:
        stack.enter_context(torch._dynamo.config.patch(recompile_limit=2 * count + 4))
        stack.enter_context(mock.patch.object(torch_compat, "follow_backward", timing_follower(backwards)))
        watched = timed(CompiledGraph.__call__, forwards.outer)
        stack.enter_context(mock.patch.object(CompiledGraph, "__call__", lambda graph, *x: watched(graph, *x)))
        if not settled:
            stack.enter_context(mock.patch.object(COORDINATOR, "_leave_out_idle"))
        losses, x = [tiny(8 + i) for i in range(count)], torch.ones(1)
        step = stepper(losses, x)
        for _ in range(10):
            step()
        beside = None if settled else tiny(8 + count)(x)
        step()
        for graph in [one for one in gc.get_objects() if type(one) is CompiledGraph]:
            graph.compiled = timed(graph.compiled, forwards.inner)
        forwards.clear()
        backwards.clear()
        for _ in range(steps):
            step()
        if bool(COORDINATOR.unsettled_graphs()) is settled:
            raise SystemExit("the graphs are not in the state that is to be measured")
        added = forwards.added_ns(), backwards.added_ns()
        # The clock's own time, amid the same steps: it takes longer there than in a loop of its own.
        forwards.clear()
        watched = timed(lambda graph, *x: graph.compiled(*x), forwards.outer)
        for _ in range(steps):
            step()
        clock_ns = forwards.added_ns()
        del beside
    return added[0] - clock_ns, added[1] - clock_ns


def timing_follower(times: Nested) -> Callable[..., None]:
    """`follow_backward` for classes of nodes whose backwards are timed, and what it adds to them."""
    original, known = torch_compat.follow_backward, set()

    def follow(node: Any, *arguments: Any) -> None:
        function = type(node)._forward_cls
        if function in known:
            original(node, *arguments)
            return
        known.add(function)
        function.backward = staticmethod(timed(function.backward, times.inner))
        original(node, *arguments)
        function.backward = staticmethod(timed(function.backward, times.outer))

    return follow


def tiny(size: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """A compiled function with a graph of its own, and a loss."""
    weight = torch.linspace(0, 1, size, requires_grad=True)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return (x * weight).cos().sum()

    return torch.compile(loss, backend="remat", options=OPTIONS, dynamic=False)


def stepper(losses: Sequence[Callable[[torch.Tensor], torch.Tensor]], x: torch.Tensor) -> Callable[[], None]:
    """All forwards, then one backward."""

    def step() -> None:
        total = losses[0](x)
        for loss in losses[1:]:
            total = total + loss(x)
        total.backward()

    return step


if __name__ == "__main__":
    main()
