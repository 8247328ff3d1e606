"""Which of Dynamo's compilations of a function is under way, and how to have an input's sizes changing in the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._dynamo import config as dynamo_config

from remat_compiler.torch_compat.patches import CHANGING_SIZES
from remat_compiler.torch_compat.patching import replace


class FrameCompilation(NamedTuple):
    """The compilation under way.

    Attributes:
        frame: Number of the function, as Dynamo counts them.
        earlier: How often it was compiled before.
        limit: How often Dynamo compiles it at most; what needs more runs in eager.
    """

    frame: int
    earlier: int
    limit: int


def frame_compilation() -> FrameCompilation | None:
    """The compilation under way; `None` outside of Dynamo's."""
    compiled = torch._guards.CompileContext.current_compile_id()
    if compiled is None or compiled.frame_id is None or compiled.frame_compile_id is None:
        return None
    return FrameCompilation(compiled.frame_id, compiled.frame_compile_id, int(dynamo_config.recompile_limit))


def input_shapes(gm: fx.GraphModule) -> dict[str, tuple[Any, ...]]:
    """Shape of each tensor that Dynamo's graph is called with, but parameters, by the source that guards name it by."""
    shapes: dict[str, tuple[Any, ...]] = {}
    for node in gm.graph.find_nodes(op="placeholder"):
        value, argument = node.meta.get("example_value"), node.meta.get("grapharg")
        source = getattr(argument, "source", None)
        if (
            isinstance(value, torch.Tensor)
            and source is not None
            and not source.guard_source.is_unspecialized_nn_module()
        ):
            name = source.name() if callable(source.name) else source.name
            shapes[name] = tuple(value.shape)
    return shapes


_declared: dict[int, tuple[int, frozenset[str]]] = {}
"""By function, the number of the compilation that declared inputs to be changing, and their sources."""


def make_dynamic(compilation: FrameCompilation, sources: Iterable[str]) -> None:
    """Let Dynamo take the sizes of these inputs of the function as changing from its next compilation on.

    torch's own list, ``torch.compiler.config.dynamic_sources``, goes by the input's name in every function.
    """
    _declared[compilation.frame] = (compilation.earlier, frozenset(sources))
    _ask_for_declared()


@cache
def _ask_for_declared() -> None:
    """Let Dynamo ask for what was declared, too, wherever it asks whether a size changes."""
    replace(CHANGING_SIZES, _or_declared)


def _or_declared(asked: Callable[..., bool]) -> Callable[..., bool]:
    def is_dynamic_source(source_name: str, *arguments: Any, **keywords: Any) -> bool:
        return _is_declared(source_name) or bool(asked(source_name, *arguments, **keywords))

    return is_dynamic_source


def forget_dynamic(frame: int) -> None:
    """The number stands for another function from now on."""
    _declared.pop(frame, None)


def _is_declared(source: str) -> bool:
    """Whether the function that Dynamo traces now had this input declared to be changing in an earlier compilation."""
    now = frame_compilation()
    if now is None or now.frame not in _declared:
        return False
    since, sources = _declared[now.frame]
    return now.earlier > since and source in sources
