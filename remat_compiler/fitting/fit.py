"""`remat_compiler.fit`: does a training step fit a device, before anything runs, and without the GPU?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from remat_compiler.devices.cpus import Device
from remat_compiler.devices.gpus import Gpu
from remat_compiler.errors import OptionError
from remat_compiler.fitting.at_hand import device_of
from remat_compiler.fitting.fit_report import FitReport
from remat_compiler.fitting.paper_process import call_in_process
from remat_compiler.fitting.request import AT_HAND, FitRequest, Separate
from remat_compiler.memory_budget import MemoryBudget
from remat_compiler.options import Environment


def fit(
    make_model: Callable[[], Any],
    make_inputs: Callable[..., Any],
    *,
    device: str | Device = AT_HAND,
    budget: float | str | int | None = None,
    batches: Sequence[Any] = (),
    loss: Callable[[Any], Any] | None = None,
    autocast: str | None = None,
    optimizer: Callable[[Any], Any] | str | None = "AdamW",
    options: Mapping[str, Any] | None = None,
    capacity: str | int | None = None,
    step_in_backward: bool = False,
) -> FitReport:
    """Compile a training step for a GPU that need not be there, or for this CPU, and say what memory it takes.

        report = remat_compiler.fit(GPT, lambda n: (tokens(n), tokens(n)), device="h100", budget="70GiB",
                                    batches=(8, 16), autocast="bf16")
        print(report)

    Nothing of the model is allocated and no driver is needed: a process of its own runs the step on fake tensors, with
    the backend's own planning and the code that Inductor emits for that device.

    Args:
        make_model: Makes the model, on the default device.
        make_inputs: Makes the inputs of one step: a tensor, a tuple of positional or a mapping of named arguments.  It
            takes the batch, if `batches` are given.
        device: The GPU, or its name: one of `remat_compiler.devices.gpus.GPUS`; ``"cuda"``, or ``"cuda:1"``, for one
            that is there, of which nothing is used but what the driver and a calibration say; ``"cpu"`` for training on
            the CPU of this machine, whose rates are measured; single operators run on it, to learn what they take
            inside.
        budget: The backend's ``memory_budget``; without one nothing is recomputed beyond what is free.
        batches: What `make_inputs` is called with, one step for each.
        loss: Takes the model's outputs and gives the loss; by default the outputs are the loss, or have it as ``loss``.
        autocast: Type that autocast computes in: ``"bf16"`` or ``"fp16"``.
        optimizer: Takes the model's parameters and gives an optimizer, or the name of a class of `torch.optim`; `None`
            counts no state of an optimizer.
        options: Further options of the backend.
        capacity: Memory of the device that the step may have, such as ``"16GiB"``; by default what nobody uses of a
            device that is there, and all of another one.
        step_in_backward: Whether the optimizer updates each parameter within the backward, see
            `remat_compiler.step_in_backward`.

    Raises:
        OptionError: An argument is malformed, or a function does not make what it should.
        UnknownName: The device, or another name among the options, is unknown.
        PaperFailure: A function raised an error, or the step cannot run on fake tensors; the message has the traceback.
    """
    make = Separate(make_model, make_inputs, loss)
    given = dict(options or {})
    return answer(
        FitRequest(make, device, budget, tuple(batches), autocast, optimizer, given, capacity, step_in_backward)
    )


def answer(request: FitRequest) -> FitReport:
    """`fit` for a request; raises the same errors."""
    report: FitReport = call_in_process(_fit_here, located(request))
    return report


def located(request: FitRequest) -> FitRequest:
    """The request with its device in the place of the name, if it can be answered here.

    Raises:
        OptionError: The budget or the capacity is malformed, code is to be generated for the device and cannot be, or
            it is to be here and is not.
        UnknownName: It is unknown.
    """
    # Here, not only where the user's file was imported, which may take a minute.
    if request.budget is not None:
        MemoryBudget.parse(request.budget)
    device = device_of(request.device, request.capacity)
    if request.options.get("inner", Environment.read().options.get("inner", "inductor")) == "inductor":
        _check_generation(device)
    return replace(request, device=device)


def _check_generation(device: Device) -> None:
    """Raises `OptionError` if Inductor cannot generate code for the device."""
    interpreted = 'or interpret the graphs with options={"inner": "eager"} (--inner eager)'
    # Code for a GPU is written by Triton's compiler, which wheels of torch for a CPU do not bring.
    if isinstance(device, Gpu) and find_spec("triton") is None:
        raise OptionError(
            'generating code for a GPU needs the package triton, which is not installed: pip install "remat-compiler'
            f'[paper]", {interpreted}'
        )
    # Nothing is compiled, but Inductor asks the compiler which instructions it knows.
    if not isinstance(device, Gpu) and not device.compiler:
        raise OptionError(
            f"generating code for a CPU needs a C++ compiler, and none is found: install one, or set CXX, {interpreted}"
        )


def _fit_here(request: FitRequest) -> FitReport:
    # Imported in the new process alone: this one may do without torch.
    from remat_compiler.fitting.paper_step import fit_on_paper

    return fit_on_paper(request)
