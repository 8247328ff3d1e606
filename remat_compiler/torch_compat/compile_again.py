"""What compiling a graph again takes after Dynamo is done with it, and what tells that its step goes on elsewhere."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
import torch._dynamo.convert_frame
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, is_fake
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

STATIC_INPUT = "_dynamo_static_input_type"
"""Dynamo's mark of parameters and buffers."""


def compiled_backward(outputs: Any) -> Any:
    """Autograd's node of the compiled graph that made `outputs`; `None` where autograd does not follow it.

    The node holds what the forward saved.  Outputs that are views have one or two nodes of their own in front of it.
    """
    values = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    nodes = [value.grad_fn for value in values if isinstance(value, torch.Tensor) and value.grad_fn is not None]
    for _ in range(3):
        kind: Any = torch.autograd.function.BackwardCFunction
        found = next((node for node in nodes if isinstance(node, kind)), None)
        if found is not None:
            return found
        nodes = [before for node in nodes for before, _ in node.next_functions if before is not None]
    return None


def follow_backward(node: Any, calls: dict[int, Any], told: Callable[[Any, bool], None]) -> None:
    """Have the entry of a call taken out of `calls` once its backward has run.

    A hook behind the node would do the same, but autograd keeps the gradients that come in alive for it.

    Args:
        node: Autograd's node of a compiled graph.
        calls: Calls by the identity of their node; the entries' fourth items say whether anybody wants to be told.
        told: Is called with such an entry, and whether the graph is kept for another backward, which leaves it in.
    """
    function = type(node)._forward_cls
    if _FOLLOWED not in vars(function):
        original = function.backward

        def backward(ctx: Any, *gradients: Any) -> Any:
            try:
                result = original(ctx, *gradients)
            except RuntimeError as error:
                if _CHANGED in str(error):
                    raise RuntimeError(f"{error} {_CHANGED_INPUT}") from error
                raise
            del gradients
            found = getattr(ctx, _CALLS, None)
            if found is not None:
                kept = torch._C._autograd._get_current_graph_task_keep_graph()
                entry = found.get(id(ctx)) if kept else found.pop(id(ctx), None)
                if entry is not None and entry[3] is not None:
                    told(entry, kept)
            return result

        function.backward = staticmethod(backward)
        setattr(function, _FOLLOWED, True)
    setattr(node, _CALLS, calls)


_CHANGED = "modified by an inplace operation"
_CHANGED_INPUT = (
    "Compiled graphs recompute values from their inputs, as torch.utils.checkpoint does: if the program changes an "
    "input of one in place behind it, before its backward, give it a clone of that input."
)
_CALLS = "_remat_calls"
_FOLLOWED = "_remat_follows"


def saved_compilation() -> Callable[[], AbstractContextManager[None]] | None:
    """What Dynamo's compilation under way knows, to compile the same graph again later; `None` outside of one."""
    context, compilation = torch._guards.TracingContext.try_get(), torch._guards.CompileContext.try_get()
    if context is None:
        return None

    @contextmanager
    def again() -> Iterator[None]:
        # A copy, since compiling writes into it.
        with compiling(), torch._guards.compile_context(compilation), torch._guards.tracing(copy.copy(context)):
            yield

    return again


def fake_twins(inputs: Iterable[Any]) -> list[Any]:
    """`inputs` of the compilation under way without their data, all sizes fixed, to compile the same graph again.

    What Dynamo knew of real tensors lasts no longer than its compilation, and they would stay alive.
    """
    context = torch._guards.TracingContext.get()
    mode = context.fake_mode
    if mode is None:
        return list(inputs)
    twins: list[Any] = []
    for value in inputs:
        twin = value
        if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
            twin = mode.from_tensor(value, static_shapes=True)
            take_over_mark(twin, value)
        twins.append(twin)
    return twins


def take_over_mark(twin: Any, value: Any) -> None:
    """Mark the twin of an input as Dynamo marked the input."""
    kind = getattr(value, STATIC_INPUT, None)
    if kind is not None:
        setattr(twin, STATIC_INPUT, kind)


def returns_scalar(gm: fx.GraphModule) -> bool:
    """Whether a result of the graph is a single number that may be a loss."""
    values = [node.meta.get("example_value") for node in gm.graph.output_node().all_input_nodes]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return any(all(str(n) == "1" for n in value.shape) for value in tensors)


def ends_at_graph_break(gm: fx.GraphModule) -> bool:
    """Whether Dynamo ended the graph before the user's function did, so that the step goes on behind it."""
    reason = getattr(gm, "compile_subgraph_reason", None)
    return bool(reason is not None and reason.graph_break)


def any_fake(arguments: Iterable[Any]) -> bool:
    """Whether a call is made to learn what its results look like, not to compute them."""
    return any(isinstance(value, torch.Tensor) and is_fake(value) for value in arguments)


def dense_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors with memory of their own that make up a tensor: those within a subclass, or within a sparse tensor.

    None where there is no memory (fake tensors), or nobody can tell where it is.
    """
    wrapper: Any = tensor
    if is_traceable_wrapper_subclass(wrapper):
        names, _ = wrapper.__tensor_flatten__()
        inner = [getattr(wrapper, name) for name in names]
        return [part for one in inner if isinstance(one, torch.Tensor) for part in dense_parts(one)]
    if tensor.layout is torch.sparse_coo:
        return [*dense_parts(tensor._indices()), *dense_parts(tensor._values())]
    opaque = tensor.layout is not torch.strided or tensor.device.type == "meta" or is_fake(tensor)
    return [] if opaque or not torch._C._has_storage(tensor) else [tensor]


def storages_of(values: Iterable[Any]) -> set[int]:
    """Where the memory of the tensors among `values` is."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return {part.untyped_storage().data_ptr() for tensor in tensors for part in dense_parts(tensor)}


def num_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's elements; those of its parts, where it is a subclass."""
    return sum(part.numel() * part.element_size() for part in dense_parts(tensor))


def fake_outputs(compiled: Callable[..., Any], inputs: Sequence[Any]) -> Any:
    """What the first call of `compiled` gives where it is only to tell what its outputs look like; else `None`.

    That is so within `DistributedDataParallel`'s buckets: each is compiled for what the one before it gives.
    AOTAutograd answers such a call once, without running what was compiled, and it is asked at once, since the next
    call is to run.
    """
    context = torch._guards.TracingContext.try_get()
    if context is None or not context.fakify_first_call or context.fake_mode is None:
        return None
    with context.fake_mode, mock.patch.object(context.fake_mode, "allow_non_fake_inputs", True):
        return compiled(*inputs)


@contextmanager
def compiling() -> Iterator[None]:
    """Let one thread compile, as Dynamo does: with its lock, and with the sign that a compilation is under way.

    That FX traces is written down once for all threads.  Without the sign, a thread that calls its own compiled
    function meanwhile is told that it traces that one.
    """
    session = getattr(torch.compiler, "_compile_session_context", nullcontext)  # since torch 2.13
    with compile_lock(), session():
        yield


def compile_lock() -> Any:
    """What a thread holds while Dynamo compiles, and may take again: the state of tracing is one for all threads."""
    return torch._dynamo.convert_frame.compile_lock
