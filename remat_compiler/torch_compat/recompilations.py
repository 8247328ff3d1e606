"""Dynamo's compilation of a function that is under way, and how to make an input's sizes dynamic in the next one."""

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
        limit: How often Dynamo compiles it at most; calls that need another compilation run in eager.
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
    """Shape of each tensor input of Dynamo's graph except parameters, by the source that guards name it by."""
    shapes: dict[str, tuple[Any, ...]] = {}
    for node in gm.graph.find_nodes(op="placeholder"):
        value, argument = node.meta.get("example_value"), node.meta.get("grapharg")
        source = getattr(argument, "source", None)
        # Tensors that a module holds keep their sizes.
        if (
            isinstance(value, torch.Tensor)
            and source is not None
            and not source.guard_source.is_unspecialized_nn_module()
        ):
            name = source.name() if callable(source.name) else source.name  # a property from torch 2.12 on
            shapes[name] = tuple(value.shape)
    return shapes


_declared: dict[int, tuple[int, frozenset[str]]] = {}
"""By function, the number of the compilation that declared inputs to be dynamic, and their sources."""


def make_dynamic(compilation: FrameCompilation, sources: Iterable[str]) -> None:
    """Make the sizes of these inputs of the function dynamic from its next compilation on.

    torch's own list, ``torch.compiler.config.dynamic_sources``, applies to inputs of that name in every function.
    """
    _declared[compilation.frame] = (compilation.earlier, frozenset(sources))
    _ask_for_declared()


@cache
def _ask_for_declared() -> None:
    """Let Dynamo heed the declared inputs, too, whenever it asks whether a size is dynamic."""
    # Never undone: without declarations it answers as torch does.
    replace(CHANGING_SIZES, _or_declared)


def _or_declared(asked: Callable[..., bool]) -> Callable[..., bool]:
    def is_dynamic_source(source_name: str, *arguments: Any, **keywords: Any) -> bool:
        return _is_declared(source_name) or bool(asked(source_name, *arguments, **keywords))

    return is_dynamic_source


def forget_dynamic(frame: int) -> None:
    """Drop the declarations of a frame number, which Dynamo now uses for another function."""
    _declared.pop(frame, None)


def _is_declared(source: str) -> bool:
    """Whether an earlier compilation of the function that Dynamo traces declared this input to be dynamic."""
    now = frame_compilation()
    if now is None or now.frame not in _declared:
        return False
    since, sources = _declared[now.frame]
    # Later compilations only, even if Dynamo traces the declaring one over again.
    return now.earlier > since and source in sources
