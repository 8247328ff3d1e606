"""Fake inputs of a step: the same shapes, strides, shared storages and `requires_grad`, but no data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from remat_compiler import torch_compat
from remat_compiler.dry_run.emitted_wrapper import DryRunUnsupported


@dataclass(frozen=True, slots=True, eq=False)
class FakeInputs:
    """Inputs to run a step with.

    Attributes:
        values: Fake tensors and plain integers, in the order of the example inputs.
        held: Tensors that keep the storages alive. All are resident: they exist before the step.
        resident_sizes: Bytes of each distinct storage of the inputs on the counted device.
        trained_sizes: Bytes of each leaf that requires grad, on that device.
        handed_on: After a backward, the gradients of inputs that are not leaves. They are alive after the step.
    """

    values: tuple[Any, ...]
    held: tuple[torch.Tensor, ...]
    resident_sizes: tuple[int, ...]
    trained_sizes: tuple[int, ...]
    handed_on: list[torch.Tensor]

    @property
    def resident_bytes(self) -> int:
        """Bytes of the distinct storages of the inputs on the counted device."""
        return sum(self.resident_sizes)


def make_fake_inputs(
    example_inputs: Sequence[Any],
    fake_mode: Any,
    device_type: str,
    gradients_exist: bool,
    symbols: torch_compat.OwnSymbols | None = None,
) -> FakeInputs:
    """Fake twins of `example_inputs` (real or fake tensors, integers, symbolic integers).

    Args:
        example_inputs: Arguments of the compiled step.
        fake_mode: The mode that the twins belong to.
        device_type: Device type whose bytes are counted as resident.
        gradients_exist: Give each leaf that requires grad a gradient to accumulate into.
        symbols: Symbols that replace the symbolic sizes; by default numbers replace them.

    Raises:
        DryRunUnsupported: An input is not made up of plain strided tensors, or has a data-dependent size.
    """
    plain = partial(_plain, symbols)
    storages: dict[int, torch.Tensor] = {}
    values, held = [], []
    resident: list[int] = []
    trained: list[int] = []
    handed_on: list[torch.Tensor] = []

    def fake_of(part: torch.Tensor) -> torch.Tensor:
        _require_strided(part)
        storage = part.untyped_storage()
        # Inputs that share a storage share it here, too: the step may write to one and read the other.
        if storage._cdata not in storages:
            itemsize = part.dtype.itemsize
            # The whole storage, which may be larger than the input that is a view of it.
            length = plain(storage.nbytes()) // itemsize
            base = torch_compat.new_fake(fake_mode, (length,), (1,), part.dtype, part.device)
            storages[storage._cdata] = base
            held.append(base)
            if part.device.type == device_type:
                resident.append(torch_compat.size_hint(length) * itemsize)
        return _like(part, storages[storage._cdata], fake_mode, plain)

    with fake_mode:
        for example in example_inputs:
            if not isinstance(example, torch.Tensor):
                values.append(plain(example))
                continue
            fake = torch_compat.wrapped_again(example, fake_of, plain)
            if example.requires_grad and not example.is_leaf:
                # The source is the leaf that makes the input a result of an operator; nothing reads its values.
                source = torch_compat.new_fake(fake_mode, (), (), example.dtype, example.device).requires_grad_()
                fake = _Computed.apply(source, fake, handed_on)  # type: ignore[no-untyped-call]
            elif example.requires_grad:
                fake.requires_grad_()
                parts = torch_compat.wrapped_tensors(fake)
                trained += [_bytes_of(part) for part in parts if part.device.type == device_type]
            values.append(fake)
            if gradients_exist and fake.requires_grad and fake.is_leaf:
                fake.grad = torch.empty_like(fake)
                held += torch_compat.wrapped_tensors(fake.grad)
    return FakeInputs(tuple(values), tuple(held), tuple(resident), tuple(trained), handed_on)


class _Computed(torch.autograd.Function):
    """Makes an input that is no leaf: a step may change it in place, and its gradient goes on to earlier operators."""

    @staticmethod
    def forward(ctx: Any, source: torch.Tensor, value: torch.Tensor, handed_on: list[torch.Tensor]) -> torch.Tensor:
        """`value`, as if it were computed from `source`."""
        ctx.handed_on = handed_on
        # An input returned unmarked becomes a view, and autograd forbids to change views of a custom function.
        ctx.mark_dirty(value)
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Keep the gradient alive, as the next operator of a real backward would."""
        ctx.handed_on.extend(gradients)
        return None, None, None


def counted_device_type(example_inputs: Sequence[Any]) -> str:
    """The accelerator that the inputs lie on; ``cpu`` when none does."""
    types = {example.device.type for example in example_inputs if isinstance(example, torch.Tensor)}
    # Sorted, since a set of several accelerators would give another one from process to process.
    return next(iter(sorted(types - {"cpu", "meta"})), "cpu")


def _bytes_of(part: torch.Tensor) -> int:
    return torch_compat.size_hint(part.numel()) * part.dtype.itemsize


def _like(example: torch.Tensor, base: torch.Tensor, fake_mode: Any, plain: Callable[[Any], Any]) -> torch.Tensor:
    size, stride = [plain(n) for n in example.shape], [plain(n) for n in example.stride()]
    # The base has the type of the first input that used the storage; another may view the same bytes otherwise.
    typed = base if base.dtype == example.dtype else base.view(example.dtype)
    return torch_compat.fake_view(fake_mode, typed, size, stride, plain(example.storage_offset()))


def _require_strided(example: torch.Tensor) -> None:
    is_fake = isinstance(example, torch_compat.FakeTensor)
    # Exact types: other subclasses may hold tensors that nothing tells of.
    if type(example) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) and not is_fake:
        raise DryRunUnsupported(f"an input is a {type(example).__name__}, a tensor subclass")
    if example.layout is not torch.strided:
        raise DryRunUnsupported(f"an input has the layout {example.layout}, not torch.strided")


def _plain(symbols: torch_compat.OwnSymbols | None, size: Any) -> Any:
    """A symbolic size as its number in this step, or in copied symbols; any other value unchanged."""
    if isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        if symbols is not None and isinstance(size, torch.SymInt):
            hint: Any = symbols.copy(size)
        else:
            hint = torch_compat.symbol_hint(size)
        if hint is None:
            raise DryRunUnsupported(f"the size {size} of an input is known only from data")
        return hint
    return size
