"""Operators that have a form which overwrites an argument: the same bits, and no more memory than the argument has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._ops import OpOverload, OpOverloadPacket

from remat_compiler import torch_compat
from remat_compiler.torch_compat import OverwritingForm, overwriting_form

COUNT = 4099
"""Elements: several vectors of a processor, and some that fill none."""
DTYPES = (
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64),
    *(torch.int64, torch.int32, torch.uint8, torch.bool),
)
WORDS = {"rounding_mode": "floor", "approximate": "tanh"}


def forms() -> Iterator[tuple[OpOverload, int, OverwritingForm]]:
    """Operators with the positions of arguments that they can overwrite."""
    for name in sorted(dir(torch.ops.aten)):
        packet = getattr(torch.ops.aten, name)
        if not isinstance(packet, OpOverloadPacket):
            continue
        for overload in packet.overloads():  # type: ignore[no-untyped-call]
            op = getattr(packet, overload)
            for position in range(len(op._schema.arguments)):
                form = overwriting_form(op, position)
                if form is not None:
                    yield op, position, form


FORMS = list(forms())


def arguments(op: OpOverload, dtype: torch.dtype) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of one type, with numbers that leave few operators without something to do."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for position, schema in enumerate(op._schema.arguments):
        kind = str(schema.type).removeprefix("Optional[").removesuffix("]")
        if kind == "Tensor":
            value: Any = values(torch.bool if schema.name in ("mask", "condition") else dtype, position)
        elif kind == "str":
            value = WORDS.get(schema.name, schema.default_value)
        elif not str(schema.type).startswith("Optional") and schema.default_value is not None:
            value = schema.default_value
        else:
            # Of more digits than a type of 16 bits holds.
            number = 1.3013 if dtype.is_floating_point else 2
            value = {"number": number, "float": 0.4, "int": 1, "bool": False}.get(kind)
        if schema.kwarg_only:
            kwargs[schema.name] = value
        else:
            args.append(value)
    return args, kwargs


def values(dtype: torch.dtype, seed: int) -> Tensor:
    torch.manual_seed(seed)
    if dtype is torch.bool:
        return torch.rand(COUNT) > 0.5
    if dtype.is_complex or dtype.is_floating_point:
        return torch.randn(COUNT, dtype=dtype)
    return torch.randint(1, 6, (COUNT,)).to(dtype)


def bits(value: Tensor) -> Tensor:
    return value if value.dtype is torch.bool else value.view(torch.uint8)


def overwrites(op: OpOverload, position: int, form: OverwritingForm, dtype: torch.dtype) -> bool:
    """Whether the operator computes with this type, and does the same in the memory of the argument."""
    args, kwargs = arguments(op, dtype)
    if not torch_compat.rounds_alike(op, args[1] if len(args) > 1 else None, dtype):
        return False
    results: list[Tensor] = []
    try:
        outside = peak_bytes(lambda: results.append(op(*args, **kwargs)))
    except (RuntimeError, NotImplementedError, TypeError):
        return False  # not of this type
    name = op._schema.arguments[position].name
    overwritten: Tensor = args[position] if position < len(args) else kwargs[name]
    if results[0].dtype != overwritten.dtype:
        return False
    kept = {i: value.clone() for i, value in enumerate(args) if isinstance(value, Tensor) and i != position}
    given = {**kwargs, **({form.result: overwritten} if form.result else {})}
    inside = peak_bytes(lambda: results.append(form.target(*args, **given)))
    expected, found = results
    assert found.data_ptr() == overwritten.data_ptr()
    assert torch.equal(bits(found), bits(expected)), dtype
    assert all(torch.equal(bits(args[i]), bits(value)) for i, value in kept.items())
    # What it takes inside stays, so that its figure holds for both.
    assert inside == outside - expected.nbytes
    return True


def peak_bytes(run: Any) -> int:
    """Most bytes that are allocated at once."""
    live = peak = 0
    for delta in torch_compat.memory_deltas(run)[0]:
        live += delta
        peak = max(peak, live)
    return peak


def test_each_form_computes_the_same_bits_in_the_memory_of_the_argument() -> None:
    idle = [
        (str(op), position)
        for op, position, form in FORMS
        # Of every type, not up to the first.
        if not sum(overwrites(op, position, form, d) for d in DTYPES)
    ]
    assert idle == []
    assert len(FORMS) > 200


@pytest.mark.parametrize(
    ("op", "position", "form"),
    [
        (torch.ops.aten.relu.default, 0, OverwritingForm(torch.ops.aten.relu_.default)),
        (torch.ops.aten.add.Tensor, 0, OverwritingForm(torch.ops.aten.add_.Tensor)),
        (torch.ops.aten.add.Tensor, 1, OverwritingForm(torch.ops.aten.add.out, "out")),
        (
            torch.ops.aten.tanh_backward.default,
            0,
            OverwritingForm(torch.ops.aten.tanh_backward.grad_input, "grad_input"),
        ),
        (torch.ops.aten.add.Tensor, 2, None),
        (torch.ops.aten.rsub.Scalar, 0, None),  # its form with a result is generated, and copies
        (torch.ops.aten.mvlgamma.default, 0, None),
        (torch.ops.aten.mul.Scalar, 0, OverwritingForm(torch.ops.aten.mul_.Scalar)),
        (torch.ops.aten.mm.default, 0, None),
        (torch.ops.aten._softmax.default, 0, None),
        (torch.ops.aten.native_dropout.default, 0, None),
        (torch.ops.aten.bernoulli.p, 0, None),
        (torch.ops.aten.relu_.default, 0, None),
        (torch.ops.aten.view.default, 0, None),
        (torch.ops.aten.clone.default, 0, None),
    ],
)
def test_forms_are_found_by_schema(op: OpOverload, position: int, form: OverwritingForm | None) -> None:
    assert overwriting_form(op, position) == form


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.complex64])
@pytest.mark.parametrize("number", [2, 0.5, 1.3013, float("inf"), 1e5])
def test_a_number_that_is_rounded_first_is_told(number: float, dtype: torch.dtype) -> None:
    x = values(dtype, 0)
    expected, found = torch.ops.aten.mul.Scalar(x, number), torch.ops.aten.mul_.Scalar(x.clone(), number)
    told = torch_compat.rounds_alike(torch.ops.aten.mul.Scalar, number, dtype)
    assert told == torch.equal(bits(expected), bits(found))


def test_a_number_that_is_known_only_as_it_runs_may_be_rounded() -> None:
    assert not torch_compat.rounds_alike(torch.ops.aten.mul.Scalar, fx.Graph().placeholder("s"), torch.bfloat16)
    assert torch_compat.rounds_alike(torch.ops.aten.add.Scalar, 1.3013, torch.bfloat16)


def test_numbers_are_rounded_on_no_device_of_the_program() -> None:
    """A program may say on which device tensors are made by default."""
    with torch.device("meta"):
        assert torch_compat.rounds_alike(torch.ops.aten.mul.Scalar, 0.5, torch.bfloat16)
        assert not torch_compat.rounds_alike(torch.ops.aten.mul.Scalar, 1.3013, torch.bfloat16)
