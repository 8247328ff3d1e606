"""Memory that optimizers take with their first step, and that is not there before it."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from remat_compiler.torch_compat.sharded_modules import sharded_now
from remat_compiler.torch_compat.tensors import wrapped_tensors

_ADAMS = frozenset({"Adam", "AdamW", "Adamax", "NAdam", "RAdam", "SparseAdam"})
_OF_ADAM = 2
"""Values that Adam and its like keep for each value of a parameter, in its type: two averages."""
# Adafactor and Muon keep less than one value for each, Rprop keeps two; the others of torch keep what these say.
_SETTINGS: Mapping[str, tuple[str, ...]] = {"SGD": ("momentum",), "RMSprop": ("momentum", "centered")}
_ALWAYS: Mapping[str, int] = {"SGD": 0, "RMSprop": 1, "Adagrad": 0, "Adadelta": 2, "ASGD": 1, "Rprop": 2, "Muon": 1}


@dataclass(frozen=True, slots=True)
class StateToCome:
    """Bytes of the state of optimizers that they have still to make.

    Attributes:
        size_bytes: The bytes.
        is_known: Whether the optimizers are there and of a known kind; else each is taken for AdamW.
    """

    size_bytes: int
    is_known: bool


def state_to_come(inputs: Iterable[Any], device: torch.device) -> StateToCome:
    """The state on `device` of all optimizers of this process; without one, that of AdamW for the trained inputs."""
    found = {id(one): (size, known) for one, size, known in _of_optimizers(device)}
    # Inputs that are gathered for the step are no parameters of an optimizer.
    if not found and sharded_now() is None:
        leaves = (x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad and x.is_leaf)
        found = {id(leaf): (_OF_ADAM * _bytes_on(leaf, device), False) for leaf in leaves}
    sizes = found.values()
    return StateToCome(sum(size for size, _ in sizes), all(known for size, known in sizes if size))


def _of_optimizers(device: torch.device) -> Iterator[tuple[torch.Tensor, int, bool]]:
    """Each parameter on the device, the bytes of its state to come, and whether these are known."""
    # By types, since objects of other libraries may answer `isinstance` by work of their own.
    optimizers = [one for one in gc.get_objects() if issubclass(type(one), torch.optim.Optimizer)]
    for optimizer in optimizers:
        for group in getattr(optimizer, "param_groups", ()):
            values = _values(type(optimizer).__name__, group)
            for parameter in group["params"]:
                size = _bytes_on(parameter, device)
                if size and optimizer.state.get(parameter):
                    yield parameter, 0, True
                elif size:
                    yield parameter, size * (_OF_ADAM if values is None else values), values is not None


def _values(name: str, group: Mapping[str, Any]) -> int | None:
    """Values that an optimizer of that class keeps for each of a parameter; `None` if it is not known."""
    if name in _ADAMS:
        return _OF_ADAM + bool(group.get("amsgrad"))
    if name not in _ALWAYS:
        return None
    return _ALWAYS[name] + sum(bool(group.get(setting)) for setting in _SETTINGS.get(name, ()))


def _bytes_on(tensor: torch.Tensor, device: torch.device) -> int:
    return sum(part.numel() * part.dtype.itemsize for part in wrapped_tensors(tensor) if part.device == device)
