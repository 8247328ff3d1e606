"""Memory that operators take inside, beside their results, as users declare it.

An operator of another library is not run while compiling, so it cannot be measured.  Its author knows.
"""

from __future__ import annotations

import hashlib
import marshal
from collections.abc import Callable
from typing import Any

from remat_compiler.errors import OptionError

Workspace = int | Callable[..., int]
"""Bytes, or a function that gives them for the arguments of a call."""

_declared: dict[str, Workspace] = {}


def declare_workspace(op: object, workspace: Workspace | None) -> None:
    """Declare the memory that an operator takes inside, at most, beside its results.

    It applies to graphs compiled afterwards in this process, and goes before everything that was measured.

    Args:
        op: The operator: as `torch.library.custom_op` made it, ``torch.ops.ns.name``, one overload of it, or its name,
            such as ``"ns::name"`` or ``"ns::name.overload"``.
        workspace: Bytes, the same for all calls; or a function that is called with the operator's arguments, and gives
            the bytes of that call.  In place of each tensor it gets one without data, on the device ``meta``, whose
            sizes are numbers even where those of the program change.  `None` takes back what was declared.

    Raises:
        OptionError: There is no such operator, or `workspace` is neither; while compiling, if the function fails, or
            gives no number of bytes.
    """
    if not (workspace is None or callable(workspace) or _is_bytes(workspace)):
        raise OptionError(
            f"expected a whole number of bytes, at least 0, or a function that gives it; got {workspace!r}"
        )
    for name in registered_names(op):
        _declared.pop(name, None)
        if workspace is not None:
            _declared[name] = workspace


def declared_bytes(name: str, arguments: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]) -> int | None:
    """What was declared of the overload of this name for a call; `None` if nothing was.

    Args:
        name: Such as ``"ns::name"`` or ``"ns::name.overload"``.
        arguments: Gives the positional arguments of the call, and those by name, if they are asked for.

    Raises:
        OptionError: The function that was declared fails, or gives no number of bytes.
    """
    found = _declared.get(name)
    if not callable(found):
        return found
    given, by_name = arguments()
    try:
        size = found(*given, **by_name)
    except Exception as error:  # It is the user's: whatever it raises is told as theirs.
        raise OptionError(f"the workspace declared of {name} fails: {type(error).__name__}: {error}") from error
    if not _is_bytes(size):
        raise OptionError(f"the workspace declared of {name} must be a whole number of bytes, at least 0; got {size!r}")
    return int(size)


def declared_workspaces() -> tuple[tuple[str, str], ...]:
    """All that is declared, by name, sorted: a part of the keys of plans and compiled code."""
    return tuple(sorted((name, _identity(workspace)) for name, workspace in _declared.items()))


def registered_names(op: object) -> list[str]:
    """Names of the overloads that `op` refers to.

    Raises:
        OptionError: There is no such operator.
    """
    from remat_compiler import torch_compat  # `import remat_compiler` imports no torch

    overloads = torch_compat.overloads_of(op)
    if not overloads:
        raise OptionError(
            f"expected an operator that is registered: what torch.library.custom_op returns, torch.ops.ns.name, or "
            f'a name such as "ns::name"; got {op!r}'
        )
    return [torch_compat.overload_name(overload) for overload in overloads]


def _is_bytes(value: object) -> bool:
    # `type`, because True is an instance of int.
    return type(value) is int and value >= 0


def _identity(workspace: Workspace) -> str:
    """Text that is equal, in any process, for what gives equal bytes, as far as its code and what it holds show."""
    code = getattr(workspace, "__code__", None)
    if code is None:
        return repr(workspace) if isinstance(workspace, int) else f"{type(workspace).__module__}.{type(workspace)}"
    held = [cell.cell_contents for cell in getattr(workspace, "__closure__", None) or ()]
    text = marshal.dumps(code) + repr((held, getattr(workspace, "__defaults__", None))).encode()
    return hashlib.sha256(text).hexdigest()
