"""A training step as the user describes it: made on the device that is there at that moment, compiled and run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from remat_compiler import torch_compat
from remat_compiler.costs.op_call import tensors_in
from remat_compiler.errors import OptionError, UnknownName
from remat_compiler.fitting.request import PRECISIONS, FitRequest
from remat_compiler.fitting.step_checks import PARAMETERS, check_on_device, check_on_paper
from remat_compiler.gradients.step_in_backward import step_in_backward
from remat_compiler.report.store import clear_reports


def made_step(request: FitRequest, batch: Any, *, real: bool = False) -> MadeStep:
    """The step of `request` at one of its batches; `None` if it has none.

    Args:
        request: The step.
        batch: One of its batches.
        real: Whether it is made in the memory of the device, and not on paper.

    Raises:
        OptionError: The model or its inputs are not made as they must be, or an option is malformed.
        UnknownName: The optimizer is unknown.
    """
    device = torch.device(request.device_type, 0) if request.device_type == "cuda" else torch.device("cpu")
    # Before the user's file is imported, which may take a minute.
    if isinstance(request.optimizer, str):
        _maker_of(request.optimizer)
    # The step itself runs with the default device that it has in the user's program.
    with nullcontext() if real else torch_compat.KnownValues(), device:
        made: Any = request.make(batch) if request.batches else request.make()
    if not isinstance(made, tuple) or not 2 <= len(made) <= 3:
        raise OptionError(f"got {_described(made)}; return the model, its inputs, and perhaps the loss, as a tuple")
    model, inputs, loss = made if len(made) == 3 else (*made, None)
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    # The computation is on the device all the same.
    offloaded = set(map(id, torch_compat.offloaded_parameters()))
    for part, tensors in ((PARAMETERS, named), ("the inputs", dict(enumerate(tensors_in(inputs))))):
        if not real:
            check_on_paper(part, tensors)
        check_on_device(part, {name: one for name, one in tensors.items() if id(one) not in offloaded}, device)
    return MadeStep(request, model, inputs, loss, device, real)


class MadeStep:
    """A step that can be run: forward and backward, then the optimizer.

    Attributes:
        model: The user's model.
        inputs: Its inputs.
        device: Where it runs.
        optimizer: The optimizer, if there is one.
        steps_in_backward: Whether it updates each parameter within the backward.
    """

    def __init__(
        self,
        request: FitRequest,
        model: Any,
        inputs: Any,
        loss: Callable[[Any], Any] | None,
        device: torch.device,
        real: bool,
    ) -> None:
        self.model = model
        self.inputs = inputs
        self.device = device
        self._update_mode = nullcontext if real else torch_compat.AnyValues
        self._options = request.options
        self._compiled: Callable[..., Any] | None = None
        self.loss = loss or _own_loss
        self.steps_in_backward = request.step_in_backward and request.optimizer is not None
        self.optimizer = (
            None if request.optimizer is None else _optimizer(request.optimizer, model, self.steps_in_backward)
        )
        self.autocast = request.autocast
        if not real:
            self._prepare_for_paper()

    def _prepare_for_paper(self) -> None:
        if self.optimizer is None:
            return
        # On a GPU optimizers work on lists of parameters at once; on fake ones they would not recognise it as such.
        for group in self.optimizer.param_groups if self.device.type == "cuda" else ():
            if group.get("foreach", False) is None and not group.get("fused"):
                group["foreach"] = True
        if self.steps_in_backward:
            self.optimizer.step = self._updated(self.optimizer.step)
            return
        # A compiled step makes its state while Dynamo traces it, outside of all modes, where nothing is fake.
        if "step" in vars(self.optimizer):
            self.make_gradients()
            with self._update_mode():
                type(self.optimizer).step(self.optimizer)
            self.model.zero_grad()

    def _updated(self, step: Callable[[], Any]) -> Callable[[], Any]:
        def update() -> Any:
            with self._update_mode():
                return step()

        return update

    def compile(self, budget: float | str | int | None, backend: Callable[..., Any] | str = "remat") -> None:
        """Compile the model anew under `budget`; without one, nothing is recomputed beyond what is free."""
        # Other sizes of a graph that is known would be compiled for all sizes.
        torch.compiler.reset()
        clear_reports()
        options = {"memory_budget": 1.0 if budget is None else budget, **self._options}
        self._compiled = torch.compile(self.model, backend=backend, options=options)

    def leave_eager(self) -> None:
        """Run the model as it is, without a compiler."""
        clear_reports()
        self._compiled = _as_on_a_gpu(self.model)

    def run(self, between: Callable[[], None] = lambda: None) -> None:
        """Forward and backward; `between` is called in between.

        All outputs are held to the end, as most training loops hold them.  `compile` or `leave_eager` comes first.
        """
        assert self._compiled is not None
        with _autocast(self.autocast, self.device):
            outputs = _called(self._compiled, self.inputs)
            loss = self.loss(outputs)
        between()
        loss.backward()

    def update(self) -> None:
        """The optimizer's step, after which no gradients are left."""
        if self.optimizer is not None:
            with self._update_mode():
                self.optimizer.step()
        self.model.zero_grad()
        # The next step's inputs are others, to whose gradients nothing is added.
        for tensor in self.input_tensors:
            tensor.grad = None

    def make_gradients(self) -> None:
        """Give the parameters gradients of nothing but zeros."""
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)

    def update_once(self) -> None:
        """Let the optimizer make its state before there are any gradients."""
        self.make_gradients()
        self.update()

    @property
    def parameters(self) -> list[torch.Tensor]:
        """Parameters and buffers."""
        return [*self.model.parameters(), *self.model.buffers()]

    @property
    def input_tensors(self) -> list[torch.Tensor]:
        """Tensors among the inputs."""
        return list(tensors_in(self.inputs))

    @property
    def state(self) -> list[torch.Tensor]:
        """Tensors that the optimizer keeps."""
        return [] if self.optimizer is None else list(tensors_in(dict(self.optimizer.state)))

    @property
    def gradients(self) -> list[torch.Tensor]:
        """Gradients of the parameters."""
        return [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]

    @property
    def resident(self) -> list[torch.Tensor]:
        """All that is there before the step."""
        return [*self.parameters, *self.state, *self.input_tensors]


def _as_on_a_gpu(model: Callable[..., Any]) -> Callable[..., Any]:
    """The model, whose attention takes the kernels of the device, as it does where it is captured."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch_compat.symbolic_kernels():
            return model(*args, **kwargs)

    return run


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
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"an object of type {type(value).__name__}"


def _optimizer(asked: Callable[[Any], Any] | str, model: Any, in_backward: bool) -> Any:
    """The optimizer of a model's parameters; if `in_backward`, hooks update each of them.

    Raises:
        OptionError: It runs the step itself.
        UnknownName: No class of `torch.optim` has that name.
    """
    make = _maker_of(asked)
    made = step_in_backward(model, make) if in_backward else make(model.parameters())
    if inspect.signature(made.step).parameters.get("closure", _OPTIONAL).default is inspect.Parameter.empty:
        raise OptionError(
            f"{type(made).__name__} runs the step as often as it likes, so that it has no peak of its own; give "
            "optimizer=None (--optimizer none) to count the step without it"
        )
    return made


_OPTIONAL = inspect.Parameter("closure", inspect.Parameter.KEYWORD_ONLY, default=None)


def _maker_of(optimizer: Callable[[Any], Any] | str) -> Callable[[Any], Any]:
    """What makes the optimizer; raises `UnknownName`."""
    if not isinstance(optimizer, str):
        return optimizer
    names = [name for name, value in vars(torch.optim).items() if isinstance(value, type) and name != "Optimizer"]
    by_name = {name.lower(): getattr(torch.optim, name) for name in names}
    if optimizer.lower() not in by_name:
        raise UnknownName("optimizer", optimizer, names)
    found: Callable[[Any], Any] = by_name[optimizer.lower()]
    return found


def _autocast(precision: str | None, device: torch.device) -> AbstractContextManager[Any]:
    """Raises `OptionError` for an unknown type."""
    if precision is None:
        return nullcontext()
    name = PRECISIONS.get(str(precision).removeprefix("torch."))
    if name is None:
        raise OptionError(
            f"autocast={precision!r} is no type that autocast computes in; allowed: {', '.join(PRECISIONS)}"
        )
    return torch.autocast(device.type, dtype=getattr(torch, name))
