"""Numbers that models are made with, which fake tensors do not have.

[rate.item() for rate in torch.linspace(0, 0.1, depth)]    is computed on the CPU beside the fake tensors
draw again until no number is out of bounds                draws once: the numbers do not matter
a rate by the norm of a parameter, within an optimizer     is 1: sizes do not hang on it
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from remat_compiler.torch_compat.paper_rows import TRUNCATED_NORMAL
from remat_compiler.torch_compat.patching import replaced

_LARGEST = 4096
"""Elements of a tensor whose values may be asked for."""
_CPU = torch.device("cpu")
_ONE = {True: 1.0, False: 1}
"""By whether the type has a fraction."""
_VALUE = "_remat_value"
"""Attribute of fake tensors.  A table by weak references would keep modules from being moved and cast."""


def enter_values(stack: ExitStack) -> None:
    """Draw numbers within bounds without looking at them, until `stack` is closed.

    Raises:
        UnsupportedTorch: This torch lacks something that is changed.
    """
    stack.enter_context(replaced(TRUNCATED_NORMAL, lambda _: _drawn_once))


def _drawn_once(
    tensor: torch.Tensor, mean: float, std: float, a: float, b: float, generator: torch.Generator | None = None
) -> torch.Tensor:
    """In place of `torch.nn.init.trunc_normal_`."""
    with torch.no_grad():
        return tensor.normal_(mean, std, generator=generator)


def real_value(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with its values if they are known; else the tensor."""
    value: torch.Tensor = getattr(tensor, _VALUE, tensor)
    return value


class KnownValues(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets small tensors that are made of nothing but numbers be asked for theirs; enter it above the fake mode.

    Random tensors have no values, nor have those that were changed in place.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._changed: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        asked = self._value(args[0]) if func is torch.ops.aten._local_scalar_dense.default else None
        if asked is not None:
            with _disable_current_modes():
                return asked.item()
        if func is torch.ops.aten.nonzero.default:
            found = self._nonzero(args[0])
            if found is not None:
                return found
        result = func(*args, **kwargs)
        schema = getattr(func, "_schema", None)
        if schema is None:
            return result
        if schema.is_mutable:
            # Whatever shares memory with what was changed: views have storages of the same identity.
            tensors = (leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, FakeTensor))
            self._changed.update(tensor.untyped_storage()._cdata for tensor in tensors)
        elif isinstance(result, (FakeTensor, tuple, list)):
            self._keep(func, args, kwargs, result)
        return result

    def _value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The tensor with its values, if they are known."""
        if not isinstance(tensor, FakeTensor):
            # What `torch.tensor` makes of numbers, before it becomes fake.
            return tensor
        changed = tensor.untyped_storage()._cdata in self._changed
        value: torch.Tensor | None = None if changed else getattr(tensor, _VALUE, None)
        return value

    def _nonzero(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Places of what is not zero, whose number hangs on the values; `None` if these are not known."""
        value = self._value(tensor)
        if value is None:
            return None
        with _disable_current_modes():
            places = value.nonzero()
        result = torch.empty(places.shape, dtype=places.dtype, device=tensor.device)
        setattr(result, _VALUE, places)
        return result

    def _keep(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Compute the values of a result, if those of all that it is made of are known."""
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, FakeTensor)]
        used = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        unknown = torch.Tag.nondeterministic_seeded in func.tags or "empty" in func.name()
        if unknown or any(t.numel() > _LARGEST for t in made) or any(self._value(t) is None for t in used):
            return
        args, kwargs = tree_map_only(torch.Tensor, self._value, (args, kwargs))
        args, kwargs = tree_map_only(torch.device, lambda _: _CPU, (args, kwargs))
        with _disable_current_modes():
            try:
                values = [leaf for leaf in tree_leaves(func(*args, **kwargs)) if isinstance(leaf, torch.Tensor)]
            # Not every operator has a kernel of that type on the CPU; who asks for the values reads so.
            except (RuntimeError, NotImplementedError):
                return
        for tensor, value in zip(made, values):
            setattr(tensor, _VALUE, value)


class AnyValues(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tensors that are asked for their value say 1, for optimizers that scale their steps by what they find."""

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Otherwise Dynamo would run a compiled optimizer in eager."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return _ONE[args[0].dtype.is_floating_point]
        return func(*args, **(kwargs or {}))
