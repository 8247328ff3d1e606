"""The question whether a training step fits a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from remat_compiler.devices.cpus import Cpu, Device

AT_HAND = "cuda"
"""Name of the GPU that is there; ``"cuda:1"`` is another one."""
PRECISIONS = {"bf16": "bfloat16", "bfloat16": "bfloat16", "fp16": "float16", "float16": "float16"}
"""Names of the types that autocast may compute in, and what torch calls them."""


@dataclass(frozen=True, slots=True)
class FitRequest:
    """A training step, and the device that it is to fit.

    Attributes:
        make: Makes the model, on the default device, the inputs of one step (a tensor, a tuple of positional or a
            mapping of named arguments), and perhaps a function of the model's outputs that gives the loss; by default
            the outputs are the loss, or have it as ``loss``.  It takes the batch, if `batches` are given.
        device: The device, or its name: one of `devices.gpus.GPUS`, ``"cuda"`` for the GPU that is there, or ``"cpu"``
            for the machine without one.
        budget: The backend's ``memory_budget``; `None` for a step without a budget.
        batches: What `make` is called with, one step for each; empty to call it once with nothing.
        autocast: Type that autocast computes in, one of `PRECISIONS`; `None` without autocast.
        optimizer: Takes the model's parameters and gives an optimizer, or the name of a class of `torch.optim`; `None`
            counts no state.
        step_in_backward: Whether the optimizer updates each parameter within the backward, as
            `remat_compiler.step_in_backward` has it.
        options: Further options of the backend.
        capacity: Memory of the device that the step may have, as `option_values` reads bytes; `None` for what nobody
            uses of a device that is there, and for all of another one.
    """

    make: Callable[..., tuple[Any, ...]]
    device: str | Device = AT_HAND
    budget: float | str | int | None = None
    batches: tuple[Any, ...] = ()
    autocast: str | None = None
    optimizer: Callable[[Any], Any] | str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    capacity: str | int | None = None
    step_in_backward: bool = False

    @property
    def batch(self) -> Any:
        """Its one batch, or the first of several; `None` if it has none."""
        return self.batches[0] if self.batches else None

    @property
    def known_device(self) -> Device:
        """The device, once it is more than a name."""
        assert not isinstance(self.device, str)
        return self.device

    @property
    def device_type(self) -> str:
        """What torch calls the device."""
        return "cpu" if isinstance(self.device, Cpu) else "cuda"


@dataclass(frozen=True, slots=True)
class Separate:
    """`FitRequest.make` of functions that make the parts."""

    make_model: Callable[[], Any]
    make_inputs: Callable[..., Any]
    loss: Callable[[Any], Any] | None

    def __call__(self, *batch: Any) -> tuple[Any, ...]:
        """Model, inputs, and the loss if there is a function for it."""
        return (self.make_model(), self.make_inputs(*batch), *([] if self.loss is None else [self.loss]))
