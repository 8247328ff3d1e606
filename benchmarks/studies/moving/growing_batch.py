"""A step at any batch: captured at two, and drawn through both.

Sizes of storages and times of operators are straight lines in the batch; those that do not change with it stay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from instruments.fake_capture import captured_on_fakes
from remat_compiler.costs.links import paper_link
from remat_compiler.costs.rates import paper_rates
from remat_compiler.devices.gpus import Gpu
from remat_compiler.ir.graph import StorageKind
from remat_compiler.ir.plan import PlanResult
from remat_compiler.ir.planner import Planner
from remat_compiler.ir.problem import Link, RematProblem
from zoo.loss import Classifier

SMALL, LARGE = 64, 256
"""The batches that are captured."""
CLOSE = 200
"""The largest batch is found to one part in so many."""


@dataclass(frozen=True, slots=True)
class GrowingBatch:
    """A training step by its batch.

    Attributes:
        small: The problem at `SMALL`.
        large: The problem at `LARGE`.
        resident_bytes: What lives beside the step: parameters, and the state of their optimizer.
        memory_bytes: What the device has for all of it.
        link: The way to the host.
    """

    small: RematProblem
    large: RematProblem
    resident_bytes: int
    memory_bytes: int
    link: Link

    def at(self, batch: int, memory_bytes: int | None = None) -> RematProblem:
        """The problem at a batch, within the device's memory or `memory_bytes`."""

        def line(small: int, large: int) -> int:
            return max(small + (large - small) * (batch - SMALL) // (LARGE - SMALL), 0)

        storages = tuple(
            replace(s, size_bytes=line(s.size_bytes, t.size_bytes))
            for s, t in zip(self.small.graph.storages, self.large.graph.storages)
        )
        inputs = sum(s.size_bytes for s in storages if s.kind is StorageKind.INPUT)
        times = tuple(map(line, self.small.costs.time_ns, self.large.costs.time_ns))
        budget = (self.memory_bytes if memory_bytes is None else memory_bytes) - self.resident_bytes - inputs
        return replace(
            self.small,
            graph=replace(self.small.graph, storages=storages),
            costs=replace(self.small.costs, time_ns=times, links=(self.link,)),
            budget_bytes=max(budget, 0),
            offload_bytes=1 << 50,
        )

    def taken_bytes(self, batch: int, result: PlanResult) -> int:
        """What the device holds at the peak of a plan: the step, and what lives beside it."""
        return result.peak_bytes + self.memory_bytes - self.at(batch).budget_bytes


def image_step(
    name: str, build: Callable[[], nn.Module], pixels: int, classes: int, gpu: Gpu, states: int
) -> GrowingBatch:
    """The step of a network of images.

    Args:
        name: Name of the network.
        build: Makes it.
        pixels: Pixels a side.
        classes: Classes.
        gpu: Whose memory and rates count.
        states: Values that the optimizer keeps for each parameter.
    """

    def made(batch: int) -> tuple[nn.Module, dict[str, Tensor]]:
        images, labels = torch.randn(batch, 3, pixels, pixels), torch.randint(classes, (batch,))
        return Classifier(build()).train(), {"images": images, "labels": labels}

    return growing(name, made, gpu, states)


def growing(
    name: str, made: Callable[[int], tuple[nn.Module, dict[str, Tensor]]], gpu: Gpu, states: int
) -> GrowingBatch:
    """The step of what `made` makes of a batch; other arguments as for `image_step`.

    Raises:
        RuntimeError: The graph itself changes with the batch.
    """
    rates = {gpu.name: paper_rates(gpu)}
    small, large = (captured_on_fakes(name, partial(made, batch), rates).problems[gpu.name] for batch in (SMALL, LARGE))
    if [op.reads for op in small.graph.ops] != [op.reads for op in large.graph.ops]:
        raise RuntimeError(f"the graph of {name} is another at batch {LARGE} than at {SMALL}")
    parameters = sum(s.size_bytes for s in small.graph.storages if s.kind is StorageKind.PARAMETER)
    return GrowingBatch(small, large, parameters * (1 + states), gpu.usable_bytes, paper_link(gpu))


def largest_batch(step: GrowingBatch, planner: Planner, least: int = 1) -> tuple[int, PlanResult | None]:
    """The largest batch that a planner fits into the device, and its plan; 0 and `None` if not even `least` fits."""

    def fits(batch: int) -> PlanResult | None:
        problem = step.at(batch)
        result = planner.plan(problem)
        return result if result.peak_bytes <= problem.budget_bytes else None

    low, best = least, fits(least)
    if best is None:
        return 0, None
    # A small step first: searches often begin near their end.
    high = low + max(low // 8, 1)
    while (found := fits(high)) is not None:
        low, best, high = high, found, high + 2 * (high - low)
    while high - low > max(low // CLOSE, 1):
        middle = (low + high) // 2
        found = fits(middle)
        if found is None:
            high = middle
        else:
            low, best = middle, found
    return low, best
