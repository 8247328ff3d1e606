"""Scatters into a view, ``select_scatter`` and its siblings, without the copy of memory around their argument.

    y = select_scatter(x[:48], v, 0, 0)      torch copies all memory that x lies in, of which the result is a view
    y = copy(x[:48], v)                      this, too, though nothing of x is left in the result

A write into a view is such a scatter in graphs without changes in place.  These operators copy the whole storage of
their argument (``clone_preserve_strides``), so that `as_strided` finds all of it at the same places; here the result
holds the elements of the argument alone, in its strides.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from remat_compiler.torch_compat.fake_tensors import corrected_fake_result, fake_call, is_expanded, new_fake
from remat_compiler.torch_compat.operators import facts_of, overloads_of

_COPY = torch.ops.aten.copy.default
_MARK = "remat_scatters_into_copy"


def scatter_into_copy(node: fx.Node) -> None:
    """Have interpreters copy nothing but the first argument of a scatter, if that is all that it may write to."""
    facts = facts_of(node.target)
    if facts.scatters_into and not facts.by_place:
        node.meta[_MARK] = True


def scatters_into_copy(node: fx.Node) -> bool:
    """Whether interpreters copy nothing but the first argument of a scatter."""
    # Copies of its value off the device take over what is noted of it.
    return _MARK in node.meta and bool(facts_of(node.target).scatters_into)


@cache
def _view_of(scatter: object) -> OpOverload:
    """The view that is written, whose arguments are those of the scatter after the first two."""
    return overloads_of(f"aten::{facts_of(scatter).scatters_into}")[0]


def value_of_scatter(node: fx.Node) -> torch.Tensor:
    """The fake result of a scatter, in the layout and the storage that it has when the graph is interpreted."""
    func, args, _, result = fake_call(node)
    whole: Any = args[0]
    traced: torch.Tensor = result
    # Of a constant of the graph there may be no fake value.
    if whole is None:
        return traced
    if not scatters_into_copy(node):
        with result.fake_mode:
            corrected: torch.Tensor = corrected_fake_result(func, args, traced)
        return corrected
    if is_expanded(whole):
        return traced
    made: torch.Tensor = new_fake(result.fake_mode, whole.shape, whole.stride(), traced.dtype, traced.device)
    return made


def scattered(target: Any, whole: torch.Tensor, part: torch.Tensor, *place: Any, **named: Any) -> torch.Tensor:
    """The result of a scatter: a copy of `whole`, in its strides, into a view of which `part` is written."""
    copy = torch.empty_like(whole) if is_expanded(whole) else whole.new_empty_strided(whole.shape, whole.stride())
    if target is _COPY:
        copy.copy_(part, *place, **named)
    else:
        _view_of(target)(copy.copy_(whole), *place, **named).copy_(part)
    return copy
