"""One step on paper that is counted, and the sizes of what is there beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from remat_compiler import torch_compat
from remat_compiler.costs.libraries import THREADS, kept_bytes, kept_lives
from remat_compiler.costs.op_call import OpCall
from remat_compiler.costs.workspace import WorkspaceTable
from remat_compiler.devices.cpus import Device
from remat_compiler.devices.gpus import Gpu
from remat_compiler.dry_run.storage_tracker import Moment, StorageLife, StorageTracker
from remat_compiler.fitting.made_step import MadeStep
from remat_compiler.gradients.leave import LEAVE, leave_on_paper
from remat_compiler.simulate.lives import Life
from remat_compiler.simulate.reserved import AllocationTrace

FORWARD, BACKWARD, UPDATE = "forward", "backward", "optimizer"
"""Phases of a step."""
_UNCOUNTED_STEPS = 2


@dataclass(frozen=True, slots=True)
class Counted:
    """What a step took.

    Attributes:
        peaks: Most bytes on top of what is there before it, workspaces included, by phase.
        gradient_bytes: Bytes that its backward leaves.
        lives: Its allocations, in their order.
        moments: Its operators.
        inside: What operators take inside, where a form tells it, each for a moment.
        update_from: The moment at which the optimizer's step begins.
        calls: The operators that may take something inside, by key.
        workspaces: What they take, by key, where a form tells it.
    """

    peaks: Mapping[str, int]
    gradient_bytes: int
    lives: Sequence[StorageLife]
    moments: Sequence[Moment]
    inside: Sequence[Life]
    update_from: int
    calls: Mapping[str, OpCall]
    workspaces: Mapping[str, int]

    @property
    def unmodelled(self) -> tuple[str, ...]:
        """Names of operators of which no form tells what they take."""
        return tuple(sorted({str(call.func) for key, call in self.calls.items() if key not in self.workspaces}))

    def trace(self, step: MadeStep, device: Device) -> AllocationTrace:
        """What the step and such steps before it ask of the allocator of a device."""
        own = [Life(life.size_bytes, life.made, life.freed) for life in self.lives if life.size_bytes]
        # Stable, so that what an operator takes inside comes after its results.
        lives = tuple(sorted([*own, *self.inside], key=lambda life: life.made))
        resident, state = resident_sizes(step), storage_sizes(step.state, step.device)
        kept = kept_lives(self.moments, device.capability) if isinstance(device, Gpu) else ()
        return AllocationTrace(tuple(resident), tuple(state), lives, kept)


def settle(step: MadeStep, mode: Any = None) -> None:
    """Run a step as often as it takes until all later ones are alike.

    Args:
        step: The step.
        mode: The fake mode of its tensors; `None` if it runs on a device, where compiled graphs see what hooks take.

    Raises:
        InfeasibleBudget: Its budget cannot be kept.
    """
    for _ in range(_UNCOUNTED_STEPS):
        step.run()
        step.update()
    if step.steps_in_backward and mode is not None:
        # What its hooks take beside their state is seen in one step, and planned for in the next.
        with _watch(step, mode):
            step.run()
        step.run()


def _watch(step: MadeStep, mode: Any) -> _Watch:
    """What counts a step, on top of what is there before it."""
    watch = _Watch(mode, step.device.type, ())
    for tensor in step.resident:
        for part in torch_compat.wrapped_tensors(tensor):
            watch.hold_resident(part)
    watch.follow_gathered()
    return watch


def count(step: MadeStep, mode: Any) -> Counted:
    """Run the step once more, and count."""
    watch = _watch(step, mode)
    with watch:
        step.run(watch.enter_backward)
        gradient_bytes, update_from = watch.live_bytes, len(watch.moments)
        watch.phase = UPDATE
        step.update()
    known = WorkspaceTable().resolve(watch.calls.values())
    peaks = {FORWARD: 0, BACKWARD: 0, UPDATE: 0}
    for moment in watch.moments:
        taken = moment.live_bytes + known.get(moment.workspace_key, 0)
        peaks[moment.phase] = max(peaks[moment.phase], taken)
    sizes = [known.get(moment.workspace_key, 0) for moment in watch.moments]
    inside = [Life(size, i, i + 1) for i, size in enumerate(sizes) if size > 0]
    return Counted(peaks, gradient_bytes, watch.lives, watch.moments, inside, update_from, watch.calls, known)


def library_bytes(device: Device) -> int:
    """Workspaces that cuBLAS keeps on the device; none on a CPU."""
    return sum(library_sizes(device))


def library_sizes(device: Device) -> list[int]:
    """The bytes of each of them."""
    return [kept_bytes(device.capability)] * len(THREADS) if isinstance(device, Gpu) else []


def distinct_bytes(tensors: Iterable[torch.Tensor], device: torch.device) -> int:
    """Bytes of tensors on the device, shared ones once."""
    return sum(storage_sizes(tensors, device))


def storage_sizes(tensors: Iterable[torch.Tensor], device: torch.device) -> list[int]:
    """Bytes of each distinct storage on the device."""
    parts = (part for tensor in tensors for part in torch_compat.wrapped_tensors(tensor))
    storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in parts if t.device.type == device.type}
    return [storage.nbytes() for storage in storages.values()]


def resident_sizes(step: MadeStep) -> list[int]:
    """Bytes of what is there before the first step, in the order in which it is made."""
    return [size for tensors in (step.parameters, step.input_tensors) for size in storage_sizes(tensors, step.device)]


def update_lives(step: MadeStep, mode: Any) -> list[Life]:
    """What the optimizer's step allocates beside the gradients, once its state is there."""
    if step.steps_in_backward:
        return []
    watch = _Watch(mode, step.device.type, ())
    step.make_gradients()
    for tensor in (*step.resident, *step.gradients):
        for part in torch_compat.wrapped_tensors(tensor):
            watch.hold_resident(part)
    with watch:
        step.update()
    return [Life(life.size_bytes, life.made, life.freed) for life in watch.lives]


_GATHERED = "gathered parameter"
"""What made the memory of a parameter that is gathered."""


class _Watch(StorageTracker):  # type: ignore[no-untyped-call]
    """Counts what a step takes, while compiled code goes on to be used: Dynamo takes no notice of it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Storages that change their size while they live, and their life while they have one.
        self._resized: list[tuple[Any, StorageLife | None]] = []

    def follow_gathered(self) -> None:
        """Count the parameters of sharded modules, which have memory only while they are gathered."""
        for tensor in torch_compat.gathered_parameters():
            self._ignore(tensor)
            self._resized.append((tensor.untyped_storage(), None))

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Otherwise Dynamo would run the step in eager."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        # No operator shows that a storage was given memory, or that it was taken.
        for i, (storage, life) in enumerate(self._resized):
            if life is None and storage.nbytes():
                self._resized[i] = (storage, self.resized(storage, _GATHERED))
            elif life is not None and not storage.nbytes():
                self._resized[i] = (storage, None)
                self.release(life)
        if func is LEAVE:
            # Its hooks are the program's, whose operators count.
            begun = len(self.moments)
            with self:
                result = leave_on_paper(*args)
            if torch_compat.runs_backward():
                most = max((moment.live_bytes for moment in self.moments[begun:]), default=0)
                torch_compat.hooks_took(args[2], max(most - self.live_bytes, 0))
            return result
        return super().__torch_dispatch__(func, types, args, kwargs)

    def enter_backward(self) -> None:
        """What comes is the backward."""
        self.phase = BACKWARD
