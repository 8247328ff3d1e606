"""Which of Dynamo's compilations of a function is under way, and how to have an input's sizes changing in the next."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch._prims.rng_prims
from torch import fx
from torch._dynamo import config as dynamo_config


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


def make_dynamic(sources: list[str]) -> None:
    """Let Dynamo take the sizes of these inputs as changing from the next compilation on."""
    given = [s for s in torch.compiler.config.dynamic_sources.split(",") if s]
    torch.compiler.config.dynamic_sources = ",".join(dict.fromkeys([*given, *sources]))
