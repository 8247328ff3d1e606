"""The operator that hands a gradient to its parameter within a compiled backward, known to torch as ``remat::leave``.

    nothing = leave(gradient, parameter, argument, edge, hooks_bytes)

It does what autograd's `AccumulateGrad` would do once the whole backward has run: it adds the gradient to `.grad`, or
makes it that, and calls the parameter's post-accumulate hooks, which may change the parameter and let go of the
gradient.  Where that would not be what eager does (see `torch_compat.leaving`), the gradient is kept, and the backward
returns it to autograd as ever.

It is declared to change the parameter, so inner compilers leave it behind what reads that.  It returns a tensor without
elements, which takes the gradient's place among the results of a joint graph while that is cut.
"""

from __future__ import annotations

import torch
from torch import Tensor

from remat_compiler import torch_compat
from remat_compiler.gradients.accumulate import accumulate

_LIBRARY = torch.library.Library("remat", "FRAGMENT")  # type: ignore[no-untyped-call]
_SCHEMA = "leave(Tensor gradient, Tensor(a!) parameter, int argument, int edge, int hooks_bytes) -> Tensor"
_LOOKS = 3
"""Backwards of a compiled graph in which the memory is recorded that its hooks take."""


def _leave(gradient: Tensor, parameter: Tensor, argument: int, edge: int, hooks_bytes: int) -> Tensor:
    """Hand `gradient` over.

    Args:
        gradient: The whole gradient of the parameter in this call of the graph; nothing else reads its memory.
        parameter: The parameter as the graph has it: maybe an alias of the program's own.
        argument: Its position among the arguments of the compiled forward.
        edge: Its position among those that are tensors, which autograd's node has edges for.
        hooks_bytes: What its hooks are planned to take while they run, beside what stays.
    """
    to_serve = torch_compat.leaf_to_serve(edge)
    if to_serve is None:
        torch_compat.return_to_autograd(argument, gradient)
        return gradient.new_empty(0)
    if not torch_compat.profiler_is_running() and to_serve.looks_at_hooks(argument, _LOOKS):
        deltas, _ = torch_compat.memory_deltas(lambda: accumulate(to_serve.leaf, gradient), gradient.device.type)
        torch_compat.hooks_took(argument, torch_compat.peak_beyond(deltas))
    else:
        accumulate(to_serve.leaf, gradient)
    to_serve.is_served()
    return gradient.new_empty(0)


def leave_on_paper(gradient: Tensor, parameter: Tensor, argument: int, edge: int, hooks_bytes: int) -> Tensor:
    """The operator on fake tensors.

    A step on paper is the program's own, with its hooks.  In a dry run there are none, and the gradient is gone.
    """
    if torch_compat.is_on_paper() and torch_compat.runs_backward():
        to_serve = torch_compat.leaf_to_serve(edge)
        if to_serve is not None and to_serve.leaf._post_accumulate_grad_hooks:
            accumulate(to_serve.leaf, gradient)
            to_serve.is_served()
    return gradient.new_empty(0)


# The hook's reader may rely on the layout that autograd gives gradients.
_LIBRARY.define(_SCHEMA, tags=(torch.Tag.needs_exact_strides,))  # type: ignore[no-untyped-call]
_LIBRARY.impl("leave", _leave, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
torch.library.register_fake("remat::leave", leave_on_paper, lib=_LIBRARY)

LEAVE = torch.ops.remat.leave.default
