"""An interpreted graph that runs with results of its operators in arenas, once it is told where they lie.

The k-th operator whose result may lie in an arena makes the k-th allocation, by its form with an argument for the
result: ``mm(a, b)`` becomes ``mm.out(a, b, out=<a slot>)``.  All others run as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from remat_compiler import torch_compat
from remat_compiler.arena.placed_graph import placement_now
from remat_compiler.arena.placing import Places, Placing

Allocate = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], Tensor | None]
"""Memory of a size, stride and type for the next result; `None` to let the operator allocate it."""


@dataclass(frozen=True, slots=True)
class Result:
    """What an operator makes, which may be placed.

    Attributes:
        form: The operator with an argument for the result.
        size: Its size as traced; `stride` and `dtype` likewise.
        stride: See `size`.
        dtype: See `size`.
        given: Tensors among the arguments, each with its stride as traced.
    """

    form: torch_compat.OverwritingForm
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    given: tuple[tuple[fx.Node, tuple[int, ...]], ...]


class PlacedInterpreter:
    """Called in place of an interpreter.

    Args:
        module: The graph, with the values that torch traced.
        is_backward: Whether it is a backward's.
        device_type: Device type of what is placed.

    Attributes:
        places: Where the results of each call lie; `None` for where the allocator puts them.
        device: The device of what is placed.
    """

    def __init__(self, module: fx.GraphModule, is_backward: bool, device_type: str) -> None:
        self.places: Places | None = None
        self._module, self._is_backward = module, is_backward
        traced = (node.meta.get("val") for node in module.graph.nodes)
        devices = {value.device for value in traced if isinstance(value, Tensor) and value.device.type == device_type}
        # An arena lies on one device.
        self._results = results_of(module, device_type) if len(devices) == 1 else {}
        self.device = next(iter(devices)) if self._results else torch.device("cpu")

    def __call__(self, arguments: list[Any]) -> Any:
        """Run the graph."""
        placement = placement_now(self.places, arguments, self._is_backward)
        if placement is None:
            return torch_compat.StepInterpreter(self._module).boxed_run(arguments)
        placing = Placing(placement, arguments, self._make_arena, torch_compat.placed_in)
        return self.run(arguments, placing.allocate)

    def run(
        self, arguments: list[Any], allocate: Allocate, allocated: Callable[[Tensor], None] = lambda _: None
    ) -> Any:
        """Run the graph with memory from elsewhere; `allocated` is told of each result that an operator allocated."""
        return _Interpreter(self._module, self._results, allocate, allocated).boxed_run(arguments)

    def _make_arena(self, size_bytes: int) -> Tensor:
        return torch.empty(size_bytes, dtype=torch.uint8, device=self.device)


class _Interpreter(torch_compat.StepInterpreter):
    """One call."""

    def __init__(
        self,
        module: fx.GraphModule,
        results: Mapping[fx.Node, Result],
        allocate: Allocate,
        allocated: Callable[[Tensor], None],
    ) -> None:
        super().__init__(module)
        self._results, self._allocate, self._allocated = results, allocate, allocated

    def run_node(self, n: fx.Node) -> Any:
        """The value of one node."""
        result = self._results.get(n)
        if result is None:
            return super().run_node(n)
        memory = self._allocate(result.size, result.stride, result.dtype)
        # From arguments in another layout the operator might make a result in another one, too.
        if memory is None or not all(_has_strides(self.env[node], stride) for node, stride in result.given):
            value = super().run_node(n)
            self._allocated(value)
            return value
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        result.form.target(*args, **kwargs, **{result.form.result: memory})
        return memory


def _has_strides(value: Tensor, strides: tuple[int, ...]) -> bool:
    """Whether a value lies in memory as traced; where there is one index only, a stride says nothing."""
    own = value.stride()
    return own == strides or all(a == b or n == 1 for a, b, n in zip(own, strides, value.shape, strict=True))


def results_of(module: fx.GraphModule, device_type: str) -> dict[fx.Node, Result]:
    """The operators of a graph whose results on a device type may be placed, in order."""
    found = ((node, _result_of(node, device_type)) for node in module.graph.nodes if node.op == "call_function")
    return {node: result for node, result in found if result is not None}


def _result_of(node: fx.Node, device_type: str) -> Result | None:
    form = torch_compat.result_form(node.target) if isinstance(node.target, OpOverload) else None
    value = torch_compat.plain_tensor(node.meta.get("val"))
    if form is None or value is None or value.device.type != device_type:
        return None
    # Arguments that are no tensors are sizes that change.
    given = [(one, torch_compat.plain_tensor(one.meta.get("val"))) for one in node.all_input_nodes]
    tensors = [value, *(tensor for _, tensor in given if tensor is not None)]
    if len(tensors) <= len(given) or any(one._has_symbolic_sizes_strides for one in tensors):
        return None
    if not torch_compat.is_whole_storage(value) or not torch_compat.is_laid_out_as_traced(node, None):
        return None
    strides = tuple((one, tensor.stride()) for one, tensor in given if tensor is not None)
    return Result(form, tuple(value.shape), value.stride(), value.dtype, strides)
