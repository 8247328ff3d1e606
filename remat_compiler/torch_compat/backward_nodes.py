"""Autograd's nodes of compiled graphs: found from their outputs, and followed until their backward has run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch._dynamo.convert_frame

from remat_compiler.torch_compat.backward_starts import running_backwards
from remat_compiler.torch_compat.leaving import FOLLOWED, with_held
from remat_compiler.torch_compat.profiler import mark
from remat_compiler.torch_compat.tensors import storages_of, watched_storages

BackwardBegins = Callable[[], Callable[[Any], None] | None]
"""Called before a backward; what it returns is called with the results of the backward."""


_begun = 0


def backwards_begun() -> int:
    """How many backwards of compiled graphs that are followed have begun in this process."""
    return _begun


def compiled_backward(outputs: Any, arguments: Iterable[Any] = ()) -> Any:
    """Autograd's node of the compiled graph that made `outputs`; `None` if autograd does not follow it.

    The node holds the saved values.  Outputs that are views have one or two nodes of their own before it.

    Args:
        outputs: The outputs of a call.
        arguments: Its arguments: one that is returned as it is has the node of the graph that made it.
    """
    # AOTAutograd's node is a custom function; those of views are operators of torch.
    kind: Any = torch.autograd.function.BackwardCFunction
    nodes, given = (
        [value.grad_fn for value in values if isinstance(value, torch.Tensor) and value.grad_fn is not None]
        for values in (_listed(outputs), arguments)
    )
    earlier = {id(node) for node in given if isinstance(node, kind)}
    # The outputs' own nodes, and past the up to two nodes of views.
    for _ in range(3):
        nodes = [node for node in nodes if id(node) not in earlier]
        found = next((node for node in nodes if isinstance(node, kind)), None)
        if found is not None:
            return found
        nodes = [before for node in nodes for before, _ in node.next_functions if before is not None]
    return None


def note_outputs(node: Any, arguments: Sequence[Any], outputs: Any) -> None:
    """Note the outputs of a call that are its own with autograd's node of it, for `outputs_of`."""
    if node is not None:
        setattr(node, _OUTPUTS, watched_storages(_listed(outputs), storages_of(arguments)))


def outputs_of(node: Any) -> list[Any] | None:
    """Weak references to the outputs of a call, by its node; `None` if they were not noted."""
    found: list[Any] | None = getattr(node, _OUTPUTS, None)
    return found


def storages_saved_by(outputs: Any) -> set[int]:
    """Addresses of the storages that the compiled graph which made `outputs` keeps for its backward."""
    node = compiled_backward(outputs)
    if node is None:
        return storages_of(_listed(outputs))
    # AOTAutograd keeps by itself what needs no check of its version.
    return storages_of([*node.saved_tensors, *getattr(node, "_tensors_no_vc_check", ())])


def follow_backward(
    node: Any,
    calls: dict[int, Any],
    told: Callable[[Any, bool, Sequence[Any]], None],
    begins: Callable[[Any], None],
    of_this: BackwardBegins | None = None,
    fails: Callable[[Any, RuntimeError], None] = lambda entry, error: None,
) -> None:
    """Remove the entry of a call from `calls` once its backward has run.

    A hook after the node would do the same, but autograd keeps the incoming gradients alive for a hook.

    Args:
        node: Autograd's node of a compiled graph.
        calls: Calls by the identity of their node.
        told: Gets the entry, whether the graph is kept for another backward, and the backward's results; if it is kept,
            the entry stays in `calls`.  If the entry has no `step`, it is called only for such a graph.
        begins: Gets the entry before the backward runs, if it has a `step`.
        of_this: Called before the backward of this node runs, in any case; what it returns gets the backward's results.
        fails: Gets the entry and the error of a backward that fails, before the error goes on to the caller.
    """
    function = _with_wrapped_backward(node)
    if not hasattr(function, _LISTENERS):
        setattr(function, _LISTENERS, (told, begins, fails))
    setattr(node, _CALLS, calls)
    if of_this is not None:
        setattr(node, _BEGINS, of_this)


def after_backward(node: Any, read: Callable[[], None]) -> None:
    """Have `read` called once the backward of a compiled graph has run, by autograd's node of it.

    As `follow_backward`, it keeps no incoming gradient alive.
    """
    _with_wrapped_backward(node)
    setattr(node, _ENDS, read)


def _with_wrapped_backward(node: Any) -> Any:
    """The function behind a node, which is one for all calls of a compiled graph; its backward is wrapped once."""
    function = type(node)._forward_cls
    if FOLLOWED not in vars(function):
        original = function.backward

        def backward(ctx: Any, *gradients: Any) -> Any:
            global _begun
            _begun += 1
            measured = any(one.measured for one in running_backwards())
            if measured:
                mark()
            # Calls that are not followed have no table.
            found = getattr(ctx, _CALLS, None)
            entry = None if found is None else found.get(id(ctx))
            if entry is not None and entry.step is not None:
                getattr(function, _LISTENERS)[1](entry)
            own = getattr(ctx, _BEGINS, None)
            made = None if own is None else own()
            try:
                result = original(ctx, *gradients)
            except RuntimeError as error:
                if found is not None and id(ctx) in found:
                    getattr(function, _LISTENERS)[2](found[id(ctx)], error)
                # Eager would have kept what the operator needs; the recomputation reads the input itself.
                if _CHANGED in str(error):
                    raise RuntimeError(f"{error} {_CHANGED_INPUT}") from error
                raise
            result = with_held(ctx, result)
            # The listener may compile or measure: what came in is not needed any more.
            del gradients
            ends = getattr(ctx, _ENDS, None)
            if ends is not None:
                ends()
            if made is not None:
                made(result)
            if found is not None:
                kept = torch._C._autograd._get_current_graph_task_keep_graph()
                entry = found.get(id(ctx)) if kept else found.pop(id(ctx), None)
                if entry is not None and (kept or entry.step is not None):
                    getattr(function, _LISTENERS)[0](entry, kept, result)
            if measured:
                mark()
            return result

        function.backward = staticmethod(backward)
        setattr(function, FOLLOWED, True)
    return function


def _listed(outputs: Any) -> Sequence[Any]:
    return outputs if isinstance(outputs, (list, tuple)) else [outputs]


_CHANGED = "modified by an inplace operation"

_CHANGED_INPUT = (
    "Compiled graphs recompute values from their inputs, as torch.utils.checkpoint does: if the program changes an "
    "input of one in place behind it, before its backward, give it a clone of that input."
)

_CALLS = "_remat_calls"

_BEGINS = "_remat_backward_begins"

_LISTENERS = "_remat_listeners"

_ENDS = "_remat_backward_ends"

_OUTPUTS = "_remat_outputs"
