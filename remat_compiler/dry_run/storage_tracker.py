"""Counts the bytes of tensor storage alive while a step runs on fake tensors.

A dispatch mode sees every operator. A storage counts from the operator that first returns it until its last
reference dies, which a weak reference reports; so views, saved tensors, gradients and whatever else shares a
storage count once, and for exactly as long as in a real step.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from types import FrameType
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from remat_compiler import torch_compat
from remat_compiler.costs.op_call import OpCall, tensors_in
from remat_compiler.dry_run.emitted_wrapper import DryRunUnsupported
from remat_compiler.offload.operators import handles_in

_SAVES_RNG_STATE = "run_and_save_rng_state"


@dataclass(frozen=True, slots=True)
class Moment:
    """State of memory after an operator or a kernel has run.

    Attributes:
        phase: ``forward`` or ``backward``.
        label: Operator or kernel.
        file: The emitted wrapper that ran it; empty outside of one.
        line: Line in that wrapper; 0 outside of one.
        live_bytes: Bytes alive, including the results of the operator.
        workspace_key: Key of the operator's call if it may allocate more than its results; else empty.
    """

    phase: str
    label: str
    file: str
    line: int
    live_bytes: int
    workspace_key: str = ""


@dataclass(slots=True)
class StorageLife:
    """Life of one storage: alive at the moments `made` <= i < `freed` (`None`: to the end).

    `symbolic_bytes` is its size in symbols, if the step runs on symbolic sizes.
    """

    size_bytes: int
    made: int
    symbolic_bytes: int | torch.SymInt
    freed: int | None = None


@dataclass(slots=True)
class WrapperCall:
    """One call of an emitted wrapper.

    Attributes:
        is_backward: Whether it is the backward's.
        arguments: Storage of each argument; `None` for what does not count.
        symbols: By the name of each symbol among the arguments, the first position where it is one.
        made: What its allocator returned, in order.
        devices: The devices on which that lies.
        returned: Storage of each result.
    """

    is_backward: bool
    arguments: tuple[StorageLife | None, ...]
    symbols: Mapping[str, int] = field(default_factory=dict)
    made: list[StorageLife] = field(default_factory=list)
    devices: set[torch.device] = field(default_factory=set)
    returned: tuple[StorageLife | None, ...] = ()


class StorageTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that counts storages of one device type; enter it above the fake tensor mode.

    Args:
        fake_mode: The mode that computes the results.
        device_type: Storages elsewhere (offloaded values) are not counted.
        wrapper_files: Code file names of the emitted wrappers, for the line of each moment.
        symbolic: Keep the calls of operators in symbolic sizes.
    """

    # Otherwise torch raises an error of its own before `_run` can name the operator.
    supports_higher_order_operators = True

    def __init__(
        self, fake_mode: Any, device_type: str, wrapper_files: Iterable[str], *, symbolic: bool = False
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase = "forward"
        self.live_bytes = 0
        self.moments: list[Moment] = []
        self.lives: list[StorageLife] = []
        self.calls: dict[str, OpCall] = {}
        self.wrapper_calls: list[WrapperCall] = []
        self._fake_mode = fake_mode
        self.device_type = device_type
        self._alignment = torch_compat.allocation_alignment(device_type)
        self._files = frozenset(name for name in wrapper_files if name)
        # By address of the C++ storage; an entry goes with its storage, since the address may be used again.
        self._known: dict[int, weakref.ref[Any]] = {}
        self._lives: dict[int, StorageLife] = {}
        # Resident storages stay alive: one that died would give its address to a storage that counts.
        self._held: list[torch.Tensor] = []
        self._paused = False
        self._symbolic = symbolic

    def hold_resident(self, tensor: torch.Tensor) -> None:
        """Never count the storage of `tensor`: it exists before the step."""
        self._held.append(tensor)
        self._ignore(tensor)

    def adopt_constant(self, tensor: torch.Tensor) -> torch.Tensor:
        """Fake tensor for a real tensor that the compiled code holds.

        Raises:
            DryRunUnsupported: It requires grad; a backward would write into the user's parameter.
        """
        if isinstance(tensor, torch_compat.FakeTensor):
            return tensor
        if tensor.requires_grad:
            raise DryRunUnsupported("the compiled step holds a parameter that is not among its inputs")
        with self.paused():
            fake: torch.Tensor = self._fake_mode.from_tensor(tensor)
        self.hold_resident(fake)
        return fake

    def lives_of(self, values: Iterable[object]) -> tuple[StorageLife | None, ...]:
        """The life of the storage of each value; `None` for what is no tensor, and for storages that do not count."""
        return tuple(
            self._lives.get(value.untyped_storage()._cdata) if isinstance(value, torch.Tensor) else None
            for value in values
        )

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Run operators that no real step would run; their results are never counted."""
        # The former value comes back, for blocks nest.
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def saw_kernel(self, name: str) -> None:
        """Record the start of a compiled kernel, which allocates nothing."""
        # A moment of its own all the same: the report names the kernels that run at the peak.
        self.moments.append(Moment(self.phase, name, *self._place(), self.live_bytes))

    def entered(self, is_backward: bool, arguments: Sequence[Any]) -> None:
        """Record the call of an emitted wrapper."""
        symbols: dict[str, int] = {}
        for position, argument in enumerate(arguments if self._symbolic else ()):
            name = torch_compat.symbol_name(argument)
            if name is not None:
                symbols.setdefault(name, position)
        self.wrapper_calls.append(WrapperCall(is_backward, self.lives_of(arguments), symbols))

    def left(self, results: Sequence[Any]) -> None:
        """Record what the wrapper that was entered last returns."""
        self.wrapper_calls[-1].returned = self.lives_of(results)

    def allocate(self, size: Any, stride: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """An empty fake tensor that counts."""
        tensor = torch_compat.new_fake(self._fake_mode, size, stride, dtype, device)
        life = self._see(tensor)
        if life is not None:
            self._note("empty_strided", None)
            if self.wrapper_calls:
                self.wrapper_calls[-1].made.append(life)
                self.wrapper_calls[-1].devices.add(tensor.device)
        return tensor

    def make_outside(self, size: Any, stride: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """An empty fake tensor that does not count: symmetric memory, which ranks share, is not the allocator's."""
        tensor = torch_compat.new_fake(self._fake_mode, size, stride, dtype, device)
        self.hold_resident(tensor)
        return tensor

    def resized(self, storage: Any, label: str) -> StorageLife:
        """Record that a storage which was empty has memory now; `release` is to be called once it has none."""
        size = self._rounded(storage.nbytes())
        life = StorageLife(torch_compat.size_hint(size), len(self.moments), size)
        self.lives.append(life)
        self.live_bytes += life.size_bytes
        self._note(label, None)
        return life

    def release(self, life: StorageLife) -> None:
        """Record that the memory of `life` is gone."""
        # Gone from the next moment on; that of the operator that ran last still counts it.
        life.freed = len(self.moments)
        self.live_bytes -= life.size_bytes

    def view(self, base: torch.Tensor, size: Any, stride: Any, offset: int) -> torch.Tensor:
        """A view of `base`; it shares the storage, so it does not count."""
        return torch_compat.fake_view(self._fake_mode, base, size, stride, offset)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        # A wrapper runs operators on its parts, which come back here.
        if any(map(_is_wrapper_class, types)):
            return NotImplemented
        # Rare, so arguments are rebuilt only if there is a real tensor among them.
        for tensor in tensors_in((args, kwargs)):
            if not isinstance(tensor, torch_compat.FakeTensor):
                args, kwargs = _map_real(self.adopt_constant, (args, kwargs))
                break
        # In-place operators allocate nothing, and their result is known: skipping them saves their shape functions.
        result = result_in_arguments(func, args, kwargs)
        if result is None:
            result = self._run(func, args, kwargs)
        # Ignored rather than skipped: a later view of such a result must not start to count it.
        if self._paused:
            for tensor in tensors_in(result):
                self._ignore(tensor)
            return result
        label = str(func)
        # Handles of values off the device lie in memory that is not the device's, though torch cannot tell.
        for tensor in handles_in(label, result):
            self._ignore(tensor)
        before = self.live_bytes
        made = [life for tensor in tensors_in(result) if (life := self._see(tensor)) is not None]
        call = OpCall.of(func, args, kwargs, result, symbolic=self._symbolic)
        # What an operator takes on another device is not counted, as its results are not.
        if call is not None and call.device_type != self.device_type:
            call = None
        # A view changes nothing, so it is no moment; an operator with a workspace is one without any result, too.
        if made or call is not None or before != self.live_bytes:
            self._note(label, call)
        return result

    def _note(self, label: str, call: OpCall | None) -> None:
        key = ""
        if call is not None:
            key = call.key
            # Equal calls have one workspace, which is measured once.
            self.calls.setdefault(key, call)
        self.moments.append(Moment(self.phase, label, *self._place(), self.live_bytes, key))

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if isinstance(func, HigherOrderOperator) and str(func) == _SAVES_RNG_STATE:
            # Given fake tensors, torch would return the real state, a tensor that the mode cannot follow.
            state = torch.empty(torch.get_rng_state().numel(), dtype=torch.uint8, device="cpu")
            return state, args[0](*args[1:], **kwargs)
        if isinstance(func, HigherOrderOperator) and any(isinstance(arg, torch.nn.Module) for arg in args):
            # The allocations of its subgraphs cannot be seen, nor which of them a real step would run.
            raise DryRunUnsupported(f"the step runs the higher-order operator {func}, which holds subgraphs")
        with torch_compat.symbolic_kernels() if self._symbolic else nullcontext():
            return torch_compat.corrected_fake_result(func, args, func(*args, **kwargs))

    def _see(self, tensor: torch.Tensor) -> StorageLife | None:
        """Start to count the storage of a result, unless it is known already or lies on another device."""
        if tensor.device.type != self.device_type:
            return None
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address in self._known:
            return None
        symbolic = self._rounded(storage.nbytes())
        size = torch_compat.size_hint(symbolic)
        # Its first moment is the one that `_note` is about to add.
        life = StorageLife(size, len(self.moments), symbolic)
        self._known[address] = weakref.ref(storage, partial(self._free, address, life))
        self._lives[address] = life
        self.lives.append(life)
        self.live_bytes += size
        return life

    def _ignore(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address not in self._known:
            self._known[address] = weakref.ref(storage, lambda _: self._known.pop(address))

    def _free(self, address: int, life: StorageLife, _: weakref.ref[Any]) -> None:
        del self._known[address], self._lives[address]
        self.release(life)

    def _rounded(self, count: Any) -> Any:
        """Bytes as the allocator rounds them."""
        # Without negative numbers: `peak_formula` compares rows only if no monomial is below 0.
        return (count + self._alignment - 1) // self._alignment * self._alignment

    def _place(self) -> tuple[str, int]:
        """File and line of the emitted wrapper that is running."""
        # The three innermost frames are this function, its caller here, and the mode's or stand-in's entry.
        frame: FrameType | None = sys._getframe(3)
        # Without wrapper files (FX interpreters) no frame matches, and the stack is deep.
        while frame is not None and self._files:
            if frame.f_code.co_filename in self._files:
                return frame.f_code.co_filename, frame.f_lineno
            frame = frame.f_back
        return "", 0


def active_tracker() -> StorageTracker | None:
    """The innermost tracker that is entered; `None` if none is."""
    found = (mode for mode in reversed(torch_compat.dispatch_modes()) if isinstance(mode, StorageTracker))
    return next(found, None)


@cache
def _is_wrapper_class(kind: type) -> bool:
    return torch_compat.is_wrapper_class(kind)


@cache
def _written_argument(func: OpOverload) -> tuple[int, str] | None:
    """Position and name of the one argument that `func` writes and returns, if its shape cannot change."""
    schema = func._schema
    written = [(i, a) for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
    # Such an operator must run on the fake tensor: `transpose_` changes its shape, `resize_` and `set_` its storage.
    changes_shape = torch.Tag.inplace_view in func.tags or "resize" in schema.name or "set_" in schema.name
    if len(written) != 1 or len(schema.returns) != 1 or changes_shape:
        return None
    position, argument = written[0]
    returned = schema.returns[0].alias_info
    if returned is None or not returned.is_write or str(argument.type) != "Tensor":
        return None
    return position, argument.name


def result_in_arguments(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """The tensor that an in-place or ``out=`` operator returns, known without running it."""
    if not isinstance(func, OpOverload):
        return None
    written = _written_argument(func)
    if written is None:
        return None
    position, name = written
    tensor = args[position] if position < len(args) else kwargs.get(name)
    # An empty ``out=`` is resized to the result, which allocates: that operator must run.
    return tensor if isinstance(tensor, torch.Tensor) and tensor.numel() else None


def _map_real(adopt: Any, value: Any) -> Any:
    """`value` with each tensor in it replaced by `adopt` of it, which leaves fake ones as they are."""
    if isinstance(value, torch.Tensor):
        return adopt(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_map_real(adopt, item) for item in value)
    if isinstance(value, dict):
        return {key: _map_real(adopt, item) for key, item in value.items()}
    return value
