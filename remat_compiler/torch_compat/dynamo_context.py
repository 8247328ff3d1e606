"""Dynamo's compilation context, kept for compiling a graph again later, and Dynamo's lock."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
import torch._dynamo.convert_frame
from torch._dynamo.source import FloatTensorSource
from torch._dynamo.symbolic_convert import TensorifyState
from torch._subclasses.fake_tensor import FakeTensor

from remat_compiler.torch_compat.modes import without_function_modes

STATIC_INPUT = "_dynamo_static_input_type"
"""Dynamo's mark of parameters and buffers."""


def saved_compilation() -> Callable[[], AbstractContextManager[None]] | None:
    """The context of Dynamo's compilation under way, to compile the same graph again later; `None` outside of one."""
    # Dynamo drops both at the end of the compilation.
    context, compilation = torch._guards.TracingContext.try_get(), torch._guards.CompileContext.try_get()
    if context is None:
        return None
    # Floats that stay as they are: without them a compilation would ask Dynamo to trace the function anew.
    constants = frozenset(TensorifyState.force_specializations)

    @contextmanager
    def again() -> Iterator[None]:
        # A copy, since compiling writes into it.
        with compiling(), torch._guards.compile_context(compilation), torch._guards.tracing(copy.copy(context)):
            added = constants - TensorifyState.force_specializations
            TensorifyState.force_specializations.update(added)
            try:
                yield
            finally:
                TensorifyState.force_specializations.difference_update(added)

    return again


def fake_twins(inputs: Iterable[Any]) -> list[Any]:
    """`inputs` of the compilation under way without their data, all sizes fixed, to compile the same graph again.

    Real tensors would stay alive, and Dynamo forgets its records of them when its compilation ends.
    """
    context = torch._guards.TracingContext.get()
    mode = context.fake_mode
    if mode is None:
        return list(inputs)
    twins: list[Any] = []
    for value in inputs:
        twin = value
        # Static: sizes of a graph compiled again for fixed sizes must not become symbols of Dynamo's.
        if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
            of_float = twin_of_float(value)
            twin = mode.from_tensor(value, static_shapes=True) if of_float is None else of_float
            take_over_mark(twin, value)
        twins.append(twin)
    return twins


def twin_of_float(value: Any) -> Any:
    """The fake tensor of a float that Dynamo hands over in a tensor, with the float's symbol; `None` for others."""
    context = torch._guards.TracingContext.try_get()
    if context is None or context.fake_mode is None or not isinstance(value, torch.Tensor):
        return None
    record = context.tensor_to_context.get(value)  # type: ignore[no-untyped-call]
    if not isinstance(getattr(record, "tensor_source", None), FloatTensorSource):
        return None
    # By its source, the graph finds the same symbol for it.
    return context.fake_mode.from_tensor(value, symbolic_context=record, source=record.tensor_source)


def take_over_mark(twin: Any, value: Any) -> None:
    """Mark the twin of an input as Dynamo marked the input."""
    # By the mark AOTAutograd tells parameters and buffers from data (`static_input_indices`).
    kind = getattr(value, STATIC_INPUT, None)
    if kind is not None:
        setattr(twin, STATIC_INPUT, kind)


def fake_outputs(compiled: Callable[..., Any], inputs: Sequence[Any]) -> Any:
    """Result of the first call of `compiled`, if Dynamo makes it with fake tensors to learn the outputs; else `None`.

    That is so within `DistributedDataParallel`'s buckets: each is compiled for the outputs of the one before it.
    AOTAutograd answers the first call without running the compiled code, and runs the code from the second call on.
    So the first call is made here, before the dry run calls `compiled`.
    """
    context = torch._guards.TracingContext.try_get()
    if context is None or not context.fakify_first_call or context.fake_mode is None:
        return None
    with context.fake_mode, mock.patch.object(context.fake_mode, "allow_non_fake_inputs", True):
        return compiled(*inputs)


def keep_first_call_on_fakes() -> None:
    """Have the compilation that begins see to its end that Dynamo makes the first call with fake tensors, if it does.

    A flag says so while `DistributedDataParallel`'s buckets are compiled; a guard of each bucket resets it in its
    `__del__`.  The guard of an earlier bucket may be part of a reference cycle, and be deleted in the middle of this
    compilation.
    """
    context = torch._guards.TracingContext.try_get()
    if context is None or not context.fakify_first_call:
        return
    gc.collect()
    context.fakify_first_call = True


@contextmanager
def compiling() -> Iterator[None]:
    """Let one thread compile, as Dynamo does: with its lock, with the flag that a compilation is under way, and without
    the modes of the program that see functions of torch.

    FX keeps one flag for all threads that it traces.  Without Dynamo's flag, a thread that calls its own compiled
    function meanwhile gets the error that FX traces that function.
    """
    session = getattr(torch.compiler, "_compile_session_context", nullcontext)  # since torch 2.13
    with compile_lock(), session(), without_function_modes():
        yield


def compile_lock() -> Any:
    """Dynamo's lock, which a thread may take again: the state of tracing is shared by all threads."""
    return torch._dynamo.convert_frame.compile_lock
