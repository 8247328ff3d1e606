"""The call of an operator as plain data: everything that decides its time and memory, and enough to repeat it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._pytree import tree_map_only

from remat_compiler import torch_compat
from remat_compiler.gradients.leave import LEAVE
from remat_compiler.operators.row import NOTHING

_NUMBERS = (int, float, complex, torch.SymInt, torch.SymFloat)
"""Types of a number among the operands of an operator."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor as an operator sees it, without its data; sizes and strides count elements.

    Attributes:
        lazily: What is still to be applied to its elements, ``conj``, ``neg`` or nothing: many operators copy it first.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device_type: str
    lazily: str = ""

    def __repr__(self) -> str:
        name = self.lazily + str(self.dtype).removeprefix("torch.")
        return f"{name}{list(self.shape)}/{list(self.stride)}@{self.device_type}"

    @property
    def num_bytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    def make(self) -> torch.Tensor:
        """A real tensor like this one.

        Floats are 0.5, which is no denormal, and valid for logs, roots and denominators; integers are 0; masks choose
        everything, which takes most.
        """
        # The smallest memory in which every index lies, for strides that overlap or leave gaps, too.
        extent = 1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride)) if 0 not in self.shape else 0
        # Zero bytes are zeros of every type, even of those that cannot be filled.
        flat = torch.zeros(extent * self.dtype.itemsize, dtype=torch.uint8, device=self.device_type).view(self.dtype)
        if self.dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
            flat.fill_(0.5)
        elif self.dtype is torch.bool:
            flat.fill_(True)
        return self._as_lazily(flat.as_strided(self.shape, self.stride))

    def without_data(self) -> torch.Tensor:
        """A tensor like this one on the device ``meta``."""
        return self._as_lazily(torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="meta"))

    def _as_lazily(self, made: torch.Tensor) -> torch.Tensor:
        return made.conj() if self.lazily == "conj" else torch._neg_view(made) if self.lazily == "neg" else made


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Body:
    """A graph that an operator runs, such as the branch of a condition."""

    module: torch.nn.Module

    def __repr__(self) -> str:
        code = [str(getattr(one, "code", "")) for one in self.module.modules()]
        return f"body {hashlib.sha256(repr(code).encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True, eq=False)
class OpCall:
    """One call of an operator.

    Attributes:
        func: The operator.
        args: Its arguments, with a `TensorSpec` in place of each tensor, and a `Body` in place of each graph.
        kwargs: Its keyword arguments, likewise.
        key: Text that is equal for calls that take equally much time and memory.
    """

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    key: str

    @staticmethod
    def of(
        func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any, *, symbolic: bool = False
    ) -> OpCall | None:
        """The call, or None if it certainly allocates nothing but `result`.

        Args:
            func: The operator.
            args: Its arguments.
            kwargs: Its keyword arguments.
            result: Its result.
            symbolic: Leave symbolic sizes as they are; see `concrete`.
        """
        if isinstance(func, OpOverload):
            if torch_compat.facts_of(func).collective in ("gather", "scatter") and torch_compat.is_of_gloo(args[-1]):
                return OpCall.any(func, args, kwargs, symbolic=symbolic)
            # Decided by the operator alone, without a look at the arguments.
            if allocates_results_only(func):
                return OpCall.any(func, args, kwargs, symbolic=symbolic) if _may_transpose(func, args) else None
            # Without tensors there is nothing to allocate.
            if not any(True for _ in tensors_in((args, kwargs, result))):
                return None
            if _computes_in_place_of_result(func, (args, kwargs, result)):
                # A pointwise operator on mixed types makes converted copies of its inputs on a CPU; on one
                # type it makes at most tensors of the numbers among its operands, whatever the shapes.
                numbers = any(isinstance(value, _NUMBERS) for value in args)
                args, kwargs = tree_map_only(torch.Tensor, _one_element, (args, kwargs))
                return OpCall.any(func, args, kwargs, symbolic=symbolic) if numbers else None
        return OpCall.any(func, args, kwargs, symbolic=symbolic)

    @staticmethod
    def any(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, symbolic: bool = False) -> OpCall | None:
        """The call, or None when `func` is no operator."""
        if not isinstance(func, (OpOverload, HigherOrderOperator)):
            return None
        # Hints never put a guard on a dynamic size.
        number = _same if symbolic else torch_compat.size_hint
        frozen_args, frozen_kwargs = _freeze(args, number), _freeze(dict(kwargs), number)
        # The key is the printed call: specs print all that decides time and memory.
        return OpCall(func, frozen_args, frozen_kwargs, f"{func}{frozen_args!r}{frozen_kwargs!r}")

    def concrete(self) -> OpCall:
        """The call with numbers for its symbolic sizes: those of the inputs under consideration."""
        made = OpCall.any(self.func, self.args, self.kwargs)
        assert made is not None
        return made

    @property
    def copied_bytes(self) -> int | None:
        """Bytes of the copy that gloo makes of what it gathers or scatters; `None` for other calls.

        Source: `AsyncAllgatherWork` and `ProcessGroupGloo::_reduce_scatter_base` in torch's `ProcessGroupGloo.cpp`.
        """
        collective = torch_compat.facts_of(self.func).collective
        if collective == "gather":
            return self.argument_bytes * int(self.args[1])
        return self.argument_bytes if collective == "scatter" else None

    @property
    def device_type(self) -> str:
        """Device type of its first tensor or device that is no CPU; ``cpu`` without one."""
        given = (self.args, self.kwargs)
        tensors = (spec.device_type for spec in _leaves(given, TensorSpec))
        devices = (device.type for device in _leaves(given, torch.device))
        # The state of a random generator lies on the CPU, whatever the device that draws.
        return next((kind for kind in (*tensors, *devices) if kind != "cpu"), "cpu")

    @property
    def argument_bytes(self) -> int:
        """Bytes of its tensors."""
        return sum(spec.num_bytes for spec in _leaves((self.args, self.kwargs), TensorSpec))

    @property
    def executed(self) -> OpCall:
        """The call of the operator that it runs with a random state, or in the order of effects; else itself."""
        runs_other = torch_compat.facts_of(self.func).runs in ("with random state", "in order of effects")
        start = next((i for i, arg in enumerate(self.args) if runs_other and isinstance(arg, OpOverload)), None)
        return self if start is None else OpCall(self.args[start], self.args[start + 1 :], self.kwargs, self.key)

    @property
    def bodies(self) -> list[Body]:
        """Graphs that it runs."""
        return list(_leaves((self.args, self.kwargs), Body))

    def arguments_without_data(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments with tensors on the device ``meta``."""
        return _thaw(self.args, TensorSpec.without_data), _thaw(self.kwargs, TensorSpec.without_data)

    def real_arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Fresh real arguments to repeat the call with."""
        args, kwargs = _thaw(self.args, TensorSpec.make), _thaw(self.kwargs, TensorSpec.make)
        if operator_name(self.func) == "run_with_rng_state":
            # Any other bytes are refused.
            state = torch.cuda.get_rng_state() if self.device_type == "cuda" else torch.get_rng_state()
            args = (state, *args[1:])
        # Torch's checkpoints give it a generator on a GPU, rather than the bytes of its state.
        elif operator_name(self.func) == "graphsafe_run_with_rng_state":
            # A state by itself, so that the generator of the program is left as it is.
            kwargs["rng_state"] = torch.cuda.default_generators[torch.cuda.current_device()].clone_state()
        return args, kwargs


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Tensors within nested lists, tuples and mappings."""
    return _leaves(value, torch.Tensor)


def tensor_specs(value: Any) -> Iterator[TensorSpec]:
    """The specifications of tensors within nested lists, tuples and mappings."""
    return _leaves(value, TensorSpec)


def _leaves(value: Any, kind: type) -> Iterator[Any]:
    if isinstance(value, kind):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item, kind)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _leaves(item, kind)


@cache
def allocates_results_only(func: OpOverload) -> bool:
    """Whether an operator takes nothing inside, whatever its arguments."""
    # Operators of this project do, and those that move values cannot run on made-up ones.  FSDP2 only copies; buffers
    # of collectives are not from torch's allocator on a GPU; for gloo's see `OpCall.copied_bytes`.
    # But for hooks that run within one, see `gradients`.
    if func is LEAVE:
        return False
    own = func.namespace in ("remat", "fsdp", *torch_compat.COLLECTIVE_NAMESPACES)
    facts = torch_compat.facts_of(func)
    return func.is_view or own or facts.cpu == facts.cuda == NOTHING


def operator_name(func: Any) -> str:
    """The operator's name without its namespace and overload."""
    return func._schema.name.split("::")[-1] if isinstance(func, OpOverload) else str(func)


def _may_transpose(func: OpOverload, args: tuple[Any, ...]) -> bool:
    """Whether a copy may change the layout of a transposed matrix; a CPU needs a buffer of 60 x 60 elements for it."""
    if func._schema.name not in ("aten::clone", "aten::_to_copy") or not args or not isinstance(args[0], torch.Tensor):
        return False
    matrix = args[0]
    if matrix.dim() != 2 or matrix.device.type != "cpu":
        return False
    rows, strides = torch_compat.size_hint(matrix.shape[0]), tuple(map(torch_compat.size_hint, matrix.stride()))
    # Column after column, without gaps.
    return strides == (1, rows)


def _one_element(tensor: torch.Tensor) -> TensorSpec:
    """A tensor of the same kind with one element."""
    return TensorSpec((1,), (1,), tensor.dtype, tensor.device.type)


def _computes_in_place_of_result(func: OpOverload, values: Any) -> bool:
    """Whether the operator writes each element of its result as it computes it."""
    if torch.Tag.pointwise not in func.tags or torch_compat.facts_of(func).in_steps:
        return False
    tensors = list(tensors_in(values))
    return len({tensor.dtype for tensor in tensors}) <= 1 and not any(map(_lazily, tensors))


def _lazily(tensor: torch.Tensor) -> str:
    """`TensorSpec.lazily` of a tensor."""
    return "conj" if tensor.is_conj() else "neg" if tensor.is_neg() else ""


def _freeze(value: Any, number: Callable[[Any], Any]) -> Any:
    """`value` without data, each size mapped by `number`; never puts a guard on a symbolic size."""
    if isinstance(value, (torch.Tensor, TensorSpec)):
        shape, stride = value.shape, value.stride if isinstance(value, TensorSpec) else value.stride()
        device_type = value.device_type if isinstance(value, TensorSpec) else value.device.type
        lazily = value.lazily if isinstance(value, TensorSpec) else _lazily(value)
        return TensorSpec(tuple(map(number, shape)), tuple(map(number, stride)), value.dtype, device_type, lazily)
    if isinstance(value, torch.nn.Module):
        return Body(value)
    if isinstance(value, torch.SymInt):
        return number(value)
    if isinstance(value, (torch.SymFloat, torch.SymBool)):
        return torch_compat.symbol_hint(value)
    # The default generator serves as well, and its state is put back.
    if isinstance(value, torch.Generator):
        return None
    if isinstance(value, (list, tuple)):
        return _rebuilt(value, [_freeze(item, number) for item in value])
    if isinstance(value, dict):
        return {name: _freeze(item, number) for name, item in value.items()}
    return value


def _same(size: Any) -> Any:
    return size


def _thaw(value: Any, make: Callable[[TensorSpec], torch.Tensor]) -> Any:
    if isinstance(value, TensorSpec):
        return make(value)
    if isinstance(value, Body):
        return value.module
    if isinstance(value, (list, tuple)):
        return _rebuilt(value, [_thaw(item, make) for item in value])
    if isinstance(value, dict):
        return {name: _thaw(item, make) for name, item in value.items()}
    return value


def _rebuilt(value: list[Any] | tuple[Any, ...], items: list[Any]) -> list[Any] | tuple[Any, ...]:
    """`items` as a plain list or tuple; `torch.Size` and named tuples do not accept a `TensorSpec`."""
    return items if isinstance(value, list) else tuple(items)
