"""What became of one training step, on paper or on a GPU, in figures that can be held against each other."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_HOST_CODE = "async_compile.wait(globals())"
"""Stands in emitted modules between the kernels and the code that allocates and calls them."""
_ATTENTION = re.compile(r"_scaled_dot_product_(\w+?)_attention")


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """The call of an operator, for another process to repeat.

    Attributes:
        key: As `costs.op_call.OpCall.key`.
        operator: Name of the operator in `torch.ops`, with its overload.
        args: Its arguments, with a `TensorSpec` in place of each tensor.
        kwargs: Its keyword arguments, likewise.
    """

    key: str
    operator: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One step.

    Attributes:
        texts: The modules that Inductor emitted for the step's graphs, in the order of their compilation.
        requests: Sizes that the step asks the allocator for, in bytes as the allocator counts, in their order.
        resident_bytes: What is allocated before the step.
        forward_bytes: Most that the forward has on top of that; so are the other two.
        backward_bytes: Most that the backward has.
        update_bytes: Most that the optimizer's step has.
        reserved_bytes: Most that the allocator reserves over steps that begin with nothing but what is resident.
        workspaces: What operators take inside, by `OperatorCall.key`.
        step_ns: Time of forward and backward.
        calls: The operators that may take something inside; on paper alone.
    """

    texts: tuple[str, ...]
    requests: tuple[int, ...]
    resident_bytes: int
    forward_bytes: int
    backward_bytes: int
    update_bytes: int
    reserved_bytes: int
    workspaces: Mapping[str, int]
    step_ns: int
    calls: tuple[OperatorCall, ...] = field(default=(), repr=False)

    @property
    def allocated_bytes(self) -> int:
        """Most that is allocated at once."""
        return self.resident_bytes + max(self.forward_bytes, self.backward_bytes, self.update_bytes)

    @property
    def host_code(self) -> tuple[str, ...]:
        """The part of each module that allocates, calls kernels and frees, which is all that memory hangs on."""
        return tuple(text.partition(_HOST_CODE)[2] for text in self.texts)

    @property
    def attention(self) -> tuple[str, ...]:
        """The kernels of attention that are called."""
        return tuple(sorted({name for text in self.host_code for name in _ATTENTION.findall(text)}))

    def record(self) -> dict[str, Any]:
        """All figures, for tools."""
        names = (
            *("resident_bytes", "forward_bytes", "backward_bytes", "update_bytes", "allocated_bytes"),
            *("reserved_bytes", "step_ns", "attention", "requests"),
        )
        return {name: getattr(self, name) for name in names} | {"workspaces": dict(self.workspaces)}
