"""Instruments: the peak bytes of a training step, and the times of several steps side by side.

**Peak** is the largest number of bytes of tensor storage alive at once among those that the step itself allocated:
saved values, temporaries, operator workspace, gradients, outputs.  What lived before the step (parameters, inputs) is
resident and is not counted.

On a CPU the profiler reports every allocation and release of the allocator.  Blocks are followed by address from the
allocation that the step made to their release, so a block that is older than the step cannot disturb the sum.
On CUDA the allocator's own maximum is read, less what was allocated before the step.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._C._profiler import _EventType

Step = Callable[[], object]


class AllocatorEvent(NamedTuple):
    """One allocation (`size_bytes` > 0) or release (< 0) of the CPU allocator."""

    time_ns: int
    address: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class StepMemory:
    """Bytes that training steps allocated, one entry a measured step.

    Attributes:
        peaks_bytes: Highest sum of bytes alive at once.
        left_bytes: Bytes still alive when the step returned: gradients, and state that the step made.
    """

    peaks_bytes: tuple[int, ...]
    left_bytes: tuple[int, ...]

    @property
    def peak_bytes(self) -> int:
        """The largest peak of the measured steps."""
        return max(self.peaks_bytes)

    @property
    def repeatable(self) -> bool:
        """Whether every measured step peaked at the same bytes."""
        return len(set(self.peaks_bytes)) == 1


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Medians over the rounds of one step function.

    Attributes:
        wall_ns: Elapsed time of a step.
        cpu_ns: Processor time of the whole process, all threads, in a step.
        wall_ratio: Median over rounds of the step's elapsed time over the first function's in the same round.
        cpu_ratio: The same for processor time.
    """

    wall_ns: int
    cpu_ns: int
    wall_ratio: float
    cpu_ratio: float


@dataclass(frozen=True, slots=True)
class TrainStep:
    """A training step without an optimizer: gradients dropped, forward, backward.

    Attributes:
        model: Called with the inputs; returns a scalar loss.  May be compiled.
        inputs: Keyword arguments of the model.
    """

    model: Callable[..., Tensor]
    inputs: Mapping[str, Tensor]
    parameters: tuple[nn.Parameter, ...]

    def __call__(self) -> Tensor:
        """Run the step and return the detached loss."""
        self.release()
        loss = self.model(**self.inputs)
        torch.autograd.backward(loss)
        return loss.detach()

    def release(self) -> None:
        """Drop the gradients, so that those of the next step are allocated, and counted, anew."""
        for parameter in self.parameters:
            parameter.grad = None


def train_step(model: nn.Module, inputs: Mapping[str, Tensor]) -> TrainStep:
    """The training step of `model`, eager or compiled, whose forward returns a scalar loss."""
    return TrainStep(model, inputs, tuple(model.parameters()))


def gradients(module: nn.Module) -> list[Tensor]:
    """Copies of the gradients that the last step left."""
    return [one.grad.clone() for one in module.parameters() if one.grad is not None]


def measure_step(
    step: Step,
    *,
    steps: int = 1,
    warmup: int = 2,
    device: torch.device | str = "cpu",
    without: tuple[str, ...] = (),
) -> StepMemory:
    """Bytes that `step` allocates, in `steps` runs after `warmup` runs that compile and fill caches.

    The garbage collector runs before each measured step and is off during it, so that the moment at which it would
    have run cannot change the result.  A `TrainStep` has its gradients dropped before; any other function must itself
    let go of what earlier runs left behind.  On a CPU, what is allocated within operators and regions whose names begin
    with one of `without` is left out, such as the buffers that a backend of `torch.distributed` takes for itself.

    Raises:
        ValueError: No step is to be measured, or the device has no instrument.
    """
    if steps < 1:
        raise ValueError(f"got steps={steps}; allowed is 1 or more; measure at least one step")
    kind = torch.device(device).type
    if kind not in _INSTRUMENTS:
        raise ValueError(f"got the device {device}; allowed: {', '.join(_INSTRUMENTS)}; add an instrument for it")
    for _ in range(warmup):
        step()
    readings = []
    for _ in range(steps):
        if isinstance(step, TrainStep):
            step.release()
        gc.collect()
        with _without_collector():
            readings.append(_cuda_reading(step) if kind == "cuda" else _cpu_reading(step, without))
    return StepMemory(tuple(peak for peak, _ in readings), tuple(left for _, left in readings))


def step_times(steps: Mapping[str, Step], rounds: int, *, warmup: int = 2) -> dict[str, StepTimes]:
    """Time several step functions side by side: A B C, A B C, ... for `rounds` rounds, after `warmup` rounds.

    Interleaving lets a change of the machine's speed hit all functions alike; ratios are taken within a round to the
    first function, and then their median.

    Raises:
        ValueError: There is no function or no round.
    """
    if not steps or rounds < 1:
        raise ValueError(f"got {len(steps)} functions and rounds={rounds}; allowed: at least one of each")
    for _ in range(warmup):
        for step in steps.values():
            step()
    walls: dict[str, list[int]] = {name: [] for name in steps}
    cpus: dict[str, list[int]] = {name: [] for name in steps}
    for _ in range(rounds):
        gc.collect()
        with _without_collector():
            for name, step in steps.items():
                wall_ns, cpu_ns = _time_once(step)
                walls[name].append(wall_ns)
                cpus[name].append(cpu_ns)
    first = next(iter(steps))
    return {
        name: StepTimes(
            wall_ns=int(statistics.median(walls[name])),
            cpu_ns=int(statistics.median(cpus[name])),
            wall_ratio=_median_ratio(walls[name], walls[first]),
            cpu_ratio=_median_ratio(cpus[name], cpus[first]),
        )
        for name in steps
    }


def allocator_events(step: Step, without: tuple[str, ...] = ()) -> list[AllocatorEvent]:
    """Every event of the CPU allocator while `step` runs, in order of time.

    Releases of blocks that are older than the step may be among them.  For `without`, see `measure_step`.
    """
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        kept_alive = step()
    events = _events_of(profile, without)
    del kept_alive
    return events


def _roots(profile: Any) -> Any:
    kineto = profile.profiler
    assert kineto is not None, "a profile that has ended holds its profiler"
    return kineto.kineto_results.experimental_event_tree()


def _events_of(profile: Any, without: tuple[str, ...] = ()) -> list[AllocatorEvent]:
    events = [
        AllocatorEvent(event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size)
        for event in _walk(_roots(profile), without)
        if event.tag == _EventType.Allocation and event.extra_fields.device.type == "cpu"
    ]
    return sorted(events, key=lambda event: event.time_ns)


def peak_of_second(first: Step, second: Step, device: torch.device | str = "cpu") -> int:
    """Most that the second of two steps has on top of what is there before it.

    What it lets go of and the first one made is subtracted, such as an older value of a buffer that it replaces.
    """
    if torch.device(device).type == "cuda":
        kept_alive = first()
        peak_bytes, _ = _cuda_reading(second)
        del kept_alive
        return peak_bytes
    began = "the second step"

    def both() -> object:
        first()
        with torch.profiler.record_function(began):
            return second()

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        kept_alive = both()
    events, start_ns = _events_of(profile), 0
    for event in _walk(_roots(profile), ()):
        if event.name == began:
            start_ns = event.start_time_ns
    del kept_alive
    history = live_bytes(events)
    before = [live for event, live in zip(events, history) if event.time_ns < start_ns]
    return max(history[len(before) :], default=0) - (before[-1] if before else 0)


def live_bytes(events: Iterable[AllocatorEvent]) -> list[int]:
    """Bytes alive after each event, of blocks that were allocated by one of the events."""
    sizes: dict[int, int] = {}
    live = 0
    history = []
    for event in events:
        if event.size_bytes > 0:
            # An address seen again without a release in between means that the release was not reported.
            live += event.size_bytes - sizes.get(event.address, 0)
            sizes[event.address] = event.size_bytes
        else:
            live -= sizes.pop(event.address, 0)
        history.append(live)
    return history


def _walk(roots: Iterable[Any], without: tuple[str, ...]) -> Iterator[Any]:
    """All events of the profiler's tree, parents first; of those left out, only releases."""
    stack = [(root, False) for root in roots]
    while stack:
        event, out = stack.pop()
        released = event.tag == _EventType.Allocation and event.extra_fields.alloc_size < 0
        # What is allocated outside may be released inside.
        if not out or released:
            yield event
        out = out or event.name.startswith(without)
        stack.extend((child, out) for child in event.children)


def _cpu_reading(step: Step, without: tuple[str, ...] = ()) -> tuple[int, int]:
    """Peak and remaining bytes of one step, from the CPU allocator's events."""
    history = live_bytes(allocator_events(step, without))
    return max(history, default=0), history[-1] if history else 0


def _cuda_reading(step: Step) -> tuple[int, int]:
    """Peak and remaining bytes of one step, from the CUDA allocator's statistics."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    kept_alive = step()
    torch.cuda.synchronize()
    reading = torch.cuda.max_memory_allocated() - before, torch.cuda.memory_allocated() - before
    del kept_alive
    return reading


_INSTRUMENTS = ("cpu", "cuda")


def _time_once(step: Step) -> tuple[int, int]:
    """Elapsed and processor nanoseconds of one call, devices drained."""
    _drain_devices()
    cpu = time.process_time_ns()
    wall = time.perf_counter_ns()
    step()
    _drain_devices()
    return time.perf_counter_ns() - wall, time.process_time_ns() - cpu


def _drain_devices() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _median_ratio(times: list[int], base: list[int]) -> float:
    """Median over rounds of time over base, a base of 0 ns (below the clock's step) taken as 1."""
    return statistics.median(t / max(b, 1) for t, b in zip(times, base))


@contextmanager
def _without_collector() -> Iterator[None]:
    """The garbage collector off, and afterwards as it was."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
