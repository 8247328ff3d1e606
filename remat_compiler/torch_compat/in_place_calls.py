"""The call of a module as Dynamo can trace it, for modules that are compiled in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch._dynamo import external_utils, trace_rules


def traceable_call(module: nn.Module) -> Callable[..., Any]:
    """What to compile for `module` to be compiled in place.

    Dynamo skips frames of torch itself, such as that of `nn.Sequential.forward`, and leaves what they call to eager
    execution; `torch.compile` gives such modules a frame around them, which ``nn.Module.compile`` does not.
    """
    call: Callable[..., Any] = module._call_impl
    forward = getattr(module.forward, "__func__", module.forward)
    if not trace_rules.check(forward):
        return call
    framed: Callable[..., Any] = external_utils.wrap_inline(call)
    return framed
