"""The form of an operator that writes its result into the memory of an argument, found by the operators' schemas.

aten.relu(x)                        aten.relu_(x)                               in place
aten.sigmoid_backward(g, y)         aten.sigmoid_backward(g, y, grad_input=g)   with an argument for the result
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from sympy import expand, sympify
from torch._ops import OpOverload, OpOverloadPacket

from remat_compiler.torch_compat.fake_tensors import FakeTensor
from remat_compiler.torch_compat.operators import facts_of, overload_name
from remat_compiler.torch_compat.sizes import size_hint, symbol_hint


@dataclass(frozen=True, slots=True)
class OverwritingForm:
    """An operator with the arguments of another one, that writes the same result into one of them.

    Attributes:
        target: The operator.
        result: Name of the argument that is to be the overwritten one, too; empty if the operator works in place.
    """

    target: OpOverload
    result: str = ""


@cache
def overwriting_form(op: OpOverload, position: int) -> OverwritingForm | None:
    """The form of a pointwise operator that overwrites the argument at `position` of its schema; `None` without one.

    Pointwise is what torch tags so: every element of the result depends on the elements at the same place alone.
    """
    if torch.Tag.pointwise not in op.tags or torch.Tag.nondeterministic_seeded in op.tags or not allocates_results(op):
        return None
    if facts_of(op).overwriting == "composed":
        return None
    # A list of tensors has no one place.
    if not _makes_one_tensor(op) or str(op._schema.arguments[position].type) != "Tensor":
        return None
    if position == 0:
        in_place = _in_place(op)
        if in_place is not None:
            return OverwritingForm(in_place)
    return _with_result(op)


def rounds_alike(op: OpOverload, number: object, dtype: torch.dtype) -> bool:
    """Whether a number, the second argument of `op`, is the same to the form of `op` that overwrites the first.

    Types of 16 bits are computed with in 32: an operator that rounds its number first uses another one.
    """
    if facts_of(op).overwriting != "rounds number" or not dtype.is_floating_point or dtype.itemsize > 2:
        return True
    return isinstance(number, int | float) and torch.tensor(number, dtype=dtype, device="cpu").item() == number


@cache
def allocates_results(op: OpOverload) -> bool:
    """Whether a result has memory of its own if the schema names no argument that it shares it with.

    torch's operators keep to that, but for those that others are composed of: such a one may return its argument.
    """
    composed = "CompositeImplicitAutograd"
    return op.namespace == "aten" and not torch._C._dispatch_has_kernel_for_dispatch_key(overload_name(op), composed)


def plain_tensor(value: object) -> torch.Tensor | None:
    """The value if shape and strides tell all of how it lies in memory, and its memory holds just that; else `None`."""
    if not isinstance(value, torch.Tensor) or type(value) not in (torch.Tensor, FakeTensor):
        return None
    # A conjugate or negative view would hand its pending operation on to a result that is written into it.
    pending = value.is_conj() or value.is_neg() or value._is_zerotensor()
    stored = value.layout is torch.strided and not value.is_quantized and not value.is_nested
    return value if stored and not pending else None


def is_whole_storage(value: torch.Tensor) -> bool:
    """Whether a tensor is all of its memory, each element at a place of its own; never puts a guard on a size."""
    offset: int | torch.SymInt = value.storage_offset()
    # A size that depends on data is known only when the step runs.
    if any(isinstance(n, torch.SymInt) and symbol_hint(n) is None for n in (offset, *value.shape, *value.stride())):
        return False
    held, counted = value.untyped_storage().nbytes(), value.numel() * value.element_size()
    # Sizes that are equal by chance, in the call that was traced, need not be so in others.
    if size_hint(offset) != 0 or size_hint(counted) == 0 or not _are_equal(held, counted):
        return False
    places = sorted((size_hint(stride), size_hint(size)) for size, stride in zip(value.shape, value.stride()))
    dense = 1
    for stride, size in places:
        if size != 1 and stride != dense:
            return False
        dense *= size
    return True


def have_one_layout(a: torch.Tensor, b: torch.Tensor, *, part: bool = False) -> bool:
    """Whether two tensors have one type and device, and equal indices lie at equal places, whatever the sizes are.

    With `part`, `a` may end before `b` along any dimension.
    """
    if a.dtype != b.dtype or a.device != b.device or a.dim() != b.dim():
        return False
    pairs = [*([] if part else zip(a.shape, b.shape)), *zip(a.stride(), b.stride())]
    return all(_are_equal(one, other) for one, other in pairs)


def _are_equal(a: int | torch.SymInt, b: int | torch.SymInt) -> bool:
    """Whether two sizes are equal as expressions; a comparison of symbols themselves would be an assumption."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    one, other = (sympify(n if isinstance(n, int) else n.node.expr) for n in (a, b))
    return bool(expand(one - other) == 0)


def _makes_one_tensor(op: OpOverload) -> bool:
    """Whether the operator changes no argument, and gives one tensor that shares memory with none."""
    given, returned = op._schema.arguments, op._schema.returns
    is_functional = not op._schema.is_mutable and all(a.alias_info is None for a in (*given, *returned))
    return is_functional and [str(r.type) for r in returned] == ["Tensor"]


def _in_place(op: OpOverload) -> OpOverload | None:
    """The overload of the same name that changes its first argument."""
    packet = getattr(torch.ops.aten, f"{op.overloadpacket.__name__}_", None)
    if not isinstance(packet, OpOverloadPacket) or op._overloadname not in _names(packet):
        return None
    found: OpOverload = getattr(packet, op._overloadname)
    written = [a.alias_info is not None and a.alias_info.is_write for a in found._schema.arguments]
    alike = _parameters(found) == _parameters(op) and written[0] and not any(written[1:])
    return found if alike and _computes_in_place(found) else None


def _with_result(op: OpOverload) -> OverwritingForm | None:
    """The overload with one more argument, for the result."""
    for name in _names(op.overloadpacket):
        found: OpOverload = getattr(op.overloadpacket, name)
        results = [a.name for a in found._schema.arguments if a.is_out]
        if len(results) == 1 and _parameters(found) == _parameters(op) and _computes_in_place(found):
            return OverwritingForm(found, results[0])
    return None


def _computes_in_place(found: OpOverload) -> bool:
    """Whether the operator computes in the memory that it is given; torch generates others that copy a result there."""
    return torch.Tag.generated not in found.tags


def _names(packet: OpOverloadPacket) -> list[str]:
    return list(packet.overloads())  # type: ignore[no-untyped-call]


def _parameters(op: OpOverload) -> list[tuple[str, str, bool]]:
    """Names and types of the arguments, but for those that are results."""
    return [(a.name, str(a.type), a.kwarg_only) for a in op._schema.arguments if not a.is_out]
