"""A training step on paper: the model is made, compiled by the backend and run on fake tensors, and memory is counted.

The step is the user's own: ``loss = model(inputs); loss.backward(); optimizer.step()``.  It runs twice without being
counted, since the first step compiles, the optimizer's first step makes its state, and graphs that share a budget are
settled after a whole step; the third is counted.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from remat_compiler import torch_compat
from remat_compiler.costs.op_call import tensors_in
from remat_compiler.costs.workspace import WorkspaceTable
from remat_compiler.devices.caching_allocator import CachingAllocator
from remat_compiler.devices.gpus import Gpu
from remat_compiler.dry_run.storage_tracker import StorageLife, StorageTracker
from remat_compiler.errors import InfeasibleBudget, OptionError, UnknownName
from remat_compiler.fitting.fit_report import FitPoint, FitReport
from remat_compiler.fitting.request import PRECISIONS, FitRequest
from remat_compiler.report.store import clear_reports, reports

_DEVICE = torch.device("cuda", 0)
_BACKWARD, _UPDATE = "backward", "optimizer"
_UNCOUNTED_STEPS = 2
_UNLIMITED_BYTES = 2**62
_CUBLAS_BYTES = {(9, 0): 32 * 2**20, (10, 0): 32 * 2**20}
_CUBLAS_DEFAULT_BYTES = 2 * 4096 * 1024 + 8 * 16 * 1024
"""Workspace of cuBLAS on a stream (``getChosenWorkspaceSize`` in ``CUDABlas.cpp``): 32 MiB from Hopper on, else
``:4096:2:16:8``."""


def fit_on_paper(request: FitRequest) -> FitReport:
    """Measure the step of `request` for each batch; for a process of its own, see `paper_process`.

    Raises:
        OptionError: The model or its inputs are not made as they must be, or an option is malformed.
        UnknownName: The device, or another name among the options, is unknown.
    """
    # Of the torch that is changed here, to users who did nothing of the kind.
    warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
    mode = torch_compat.FakeTensorMode(allow_non_fake_inputs=True)
    with torch_compat.paper_device(request.device) as gpu, mode:
        points = [_point(request, gpu, batch, mode) for batch in request.batches or (None,)]
    return FitReport.of(gpu, request.budget, points)


def _point(request: FitRequest, gpu: Gpu, batch: Any, mode: Any) -> FitPoint:
    """The step at one batch."""
    start = time.perf_counter()
    # Another batch would be another size of the same graph, and compiled for all sizes.
    torch.compiler.reset()
    clear_reports()
    # The step itself runs with the default device that it has in the user's program.
    with torch.device(_DEVICE):
        made: Any = request.make(batch) if request.batches else request.make()
    if not isinstance(made, tuple) or not 2 <= len(made) <= 3:
        raise OptionError(f"got {_described(made)}; return the model, its inputs, and perhaps the loss, as a tuple")
    step = _Step(request, *made)
    try:
        for _ in range(_UNCOUNTED_STEPS):
            step.run()
            step.update()
    except InfeasibleBudget as error:
        return FitPoint(batch, str(error), seconds=time.perf_counter() - start)
    return _measured(gpu, batch, step, mode, start)


class _Step:
    """The step that is run: forward and backward, then the optimizer."""

    def __init__(self, request: FitRequest, model: Any, inputs: Any, loss: Callable[[Any], Any] | None = None) -> None:
        _check_on_device("parameters and buffers", {**dict(model.named_parameters()), **dict(model.named_buffers())})
        _check_on_device("the inputs", dict(enumerate(tensors_in(inputs))))
        options = {"memory_budget": 1.0 if request.budget is None else request.budget, **request.options}
        self.model = model
        self.inputs = inputs
        self.compiled = torch.compile(model, backend="remat", options=options)
        self.loss = loss or _own_loss
        self.optimizer = None if request.optimizer is None else _maker_of(request.optimizer)(model.parameters())
        self.autocast = request.autocast
        # On a GPU optimizers work on lists of parameters at once; on fake ones they would not recognise it as such.
        for group in [] if self.optimizer is None else self.optimizer.param_groups:
            if group.get("foreach", False) is None and not group.get("fused"):
                group["foreach"] = True

    def run(self, between: Callable[[], None] = lambda: None) -> None:
        """Forward and backward; `between` is called in between.

        All outputs are held to the end, as most training loops hold them.
        """
        with _autocast(self.autocast):
            outputs = _called(self.compiled, self.inputs)
            loss = self.loss(outputs)
        between()
        loss.backward()

    def update(self) -> None:
        """The optimizer's step, after which no gradients are left."""
        if self.optimizer is not None:
            self.optimizer.step()
        self.model.zero_grad()

    def state(self) -> list[torch.Tensor]:
        """Tensors that the optimizer keeps."""
        return [] if self.optimizer is None else list(tensors_in(dict(self.optimizer.state)))


class _Watch(StorageTracker):  # type: ignore[no-untyped-call]
    """Counts what a step takes, while compiled code goes on to be used: Dynamo takes no notice of it."""

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Otherwise Dynamo would run the step in eager."""
        return True

    def enter_backward(self) -> None:
        """What comes is the backward."""
        self.phase = _BACKWARD


def _measured(gpu: Gpu, batch: Any, step: _Step, mode: Any, start: float) -> FitPoint:
    parameters = [*step.model.parameters(), *step.model.buffers()]
    inputs, state = list(tensors_in(step.inputs)), step.state()
    watch = _Watch(mode, _DEVICE.type, ())
    for tensor in (*parameters, *inputs, *state):
        watch.hold_resident(tensor)
    with watch:
        step.run(watch.enter_backward)
        gradients = watch.live_bytes
        watch.phase = _UPDATE
        step.update()
    known = WorkspaceTable().resolve(watch.calls.values())
    peaks = {"forward": 0, _BACKWARD: 0, _UPDATE: 0}
    for moment in watch.moments:
        taken = moment.live_bytes + known.get(moment.workspace_key, 0)
        peaks[moment.phase] = max(peaks[moment.phase], taken)
    library = _CUBLAS_BYTES.get(gpu.capability, _CUBLAS_DEFAULT_BYTES)
    made = reports()
    return FitPoint(
        batch=batch,
        parameter_bytes=_distinct_bytes(parameters),
        gradient_bytes=gradients,
        optimizer_bytes=_distinct_bytes(state),
        input_bytes=_distinct_bytes(inputs),
        forward_bytes=peaks["forward"],
        backward_bytes=peaks[_BACKWARD],
        update_bytes=peaks[_UPDATE],
        library_bytes=library,
        reserved_bytes=_reserved_bytes([*_sizes(parameters), *_sizes(inputs), library], _sizes(state), watch.lives),
        step_ns=sum(report.step_ns + report.added_ns for report in made),
        added_ns=sum(report.added_ns for report in made),
        native_bytes=made[0].peak_before_bytes if len(made) == 1 else None,
        planned_bytes=made[0].peak_bytes if len(made) == 1 else None,
        unmodelled=tuple(sorted({str(call.func) for key, call in watch.calls.items() if key not in known})),
        seconds=time.perf_counter() - start,
    )


def _reserved_bytes(resident: Iterable[int], state: Iterable[int], lives: Iterable[StorageLife]) -> int:
    """Most that the caching allocator reserves over three steps; the optimizer has its state from the first one on."""
    allocator = CachingAllocator(_UNLIMITED_BYTES)
    for size in resident:
        allocator.allocate(size)
    known = list(lives)
    # What is freed at a moment is freed before what is made at it.
    events = sorted(
        [(life.made, 1, n) for n, life in enumerate(known)]
        + [(life.freed, 0, n) for n, life in enumerate(known) if life.freed is not None]
    )
    for number in range(3):
        blocks = {}
        for _, is_made, n in events:
            if is_made:
                blocks[n] = allocator.allocate(known[n].size_bytes)
            else:
                allocator.free(blocks.pop(n))
        if number == 0:
            for size in state:
                allocator.allocate(size)
        for block in blocks.values():
            allocator.free(block)
    return allocator.peak_reserved_bytes


def _sizes(tensors: Iterable[torch.Tensor]) -> list[int]:
    """Bytes of each distinct storage on the device."""
    storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in tensors if t.device.type == _DEVICE.type}
    return [storage.nbytes() for storage in storages.values()]


def _distinct_bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(_sizes(tensors))


def _called(model: Callable[..., Any], inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)


def _own_loss(outputs: Any) -> torch.Tensor:
    """The loss among the model's outputs.

    Raises:
        OptionError: There is none.
    """
    found = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", outputs)
    if isinstance(found, torch.Tensor) and found.numel() == 1:
        return found
    raise OptionError(
        f"the model returns {_described(outputs)} rather than a loss; give `loss`, a function that takes that and "
        "returns a tensor of one element"
    )


def _described(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"


def _maker_of(optimizer: Callable[[Any], Any] | str) -> Callable[[Any], Any]:
    """What makes the optimizer.

    Raises:
        UnknownName: No class of `torch.optim` has that name.
    """
    if not isinstance(optimizer, str):
        return optimizer
    names = [name for name, value in vars(torch.optim).items() if isinstance(value, type) and name != "Optimizer"]
    by_name = {name.lower(): getattr(torch.optim, name) for name in names}
    if optimizer.lower() not in by_name:
        raise UnknownName("optimizer", optimizer, names)
    found: Callable[[Any], Any] = by_name[optimizer.lower()]
    return found


def _autocast(precision: str | None) -> AbstractContextManager[Any]:
    """Raises `OptionError` for an unknown type."""
    if precision is None:
        return nullcontext()
    name = PRECISIONS.get(str(precision).removeprefix("torch."))
    if name is None:
        raise OptionError(
            f"autocast={precision!r} is no type that autocast computes in; allowed: {', '.join(PRECISIONS)}"
        )
    return torch.autocast(_DEVICE.type, dtype=getattr(torch, name))


def _check_on_device(part: str, tensors: Mapping[Any, Any]) -> None:
    """Raises `OptionError` for a tensor with real memory, or on another device."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch_compat.FakeTensor):
            raise OptionError(
                f"{part} have the tensor {name!r} in real memory ({tensor.numel() * tensor.element_size()} bytes on "
                f"{tensor.device}); give a function that makes its tensors itself, when it is called"
            )
        if tensor.device != _DEVICE:
            raise OptionError(
                f"{part} have the tensor {name!r} on {tensor.device}, and the step is to fit {_DEVICE}; leave the "
                "device open, or name cuda"
            )
