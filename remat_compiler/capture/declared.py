"""Operators of other libraries that are free of side effects, so that they may be executed again.

An operator that remat does not know is never recomputed: it may count, log, or change memory that its schema does not
name.  Its author knows better, and declares it.  Of a few in wide use the sources were read: all that they do is to
write results, in memory of their own and in one order, that their arguments alone decide.
"""

from __future__ import annotations

from typing import TypeVar

from remat_compiler.costs.declared_workspace import registered_names
from remat_compiler.errors import OptionError

T = TypeVar("T")

WITHOUT_DROPOUT = frozenset({"flash_attn::_flash_attn_forward", "flash_attn::_flash_attn_varlen_forward"})
"""Operators with an argument ``dropout_p`` that draw random numbers of a generator unless it is 0."""

_declared: set[str] = {
    # Products of the rows of each expert, by `torch.mm` into zeros.
    "transformers::grouped_mm_fallback",
    "transformers::grouped_mm_fallback_backward",
    # Each element is interpolated by itself.  Its backward adds up in no fixed order on a GPU.
    "torchvision::roi_align",
    *WITHOUT_DROPOUT,
}


def allow_recompute(op: T) -> T:
    """Declare that an operator makes the same results from the same arguments, and does nothing else.

    It applies to graphs compiled afterwards in this process.  Call it before the first call of the compiled function,
    or use it as a decorator above `torch.library.custom_op`.

    Args:
        op: The operator: as `torch.library.custom_op` made it, ``torch.ops.ns.name``, one overload of it, or its name,
            such as ``"ns::name"`` or ``"ns::name.overload"``.

    Returns:
        `op` itself.

    Raises:
        OptionError: There is no such operator, it changes an argument, draws random numbers, or communicates.
    """
    _declared.update(_checked_names(op))
    return op


def forbid_recompute(op: object) -> None:
    """Revoke `allow_recompute` for graphs compiled afterwards, or what is known of an operator without it.

    Has no effect on an operator that would not be executed again anyway.

    Raises:
        OptionError: There is no such operator.
    """
    _declared.difference_update(registered_names(op))


def is_declared(name: str) -> bool:
    """Whether the overload of this name, such as ``"ns::name"`` or ``"ns::name.overload"``, may be executed again."""
    return name in _declared


def declared_names() -> tuple[str, ...]:
    """Names of all overloads that may be executed again, sorted: a part of the keys of plans and compiled code."""
    return tuple(sorted(_declared))


def _checked_names(op: object) -> list[str]:
    """Names of the overloads that `op` refers to, if all of them may be declared."""
    from remat_compiler import torch_compat  # `import remat_compiler` imports no torch

    # All overloads are checked before any is declared.
    for overload in torch_compat.overloads_of(op):
        why = torch_compat.never_repeatable(overload)
        if why:
            name = torch_compat.overload_name(overload)
            raise OptionError(f"{name} {why}, so that executing it again would change what is computed")
    return registered_names(op)
