"""The place in the user's program that a graph node comes from."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import fx

from remat_compiler import torch_compat

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_NAME, _BUFFER = "remat_input_name", "remat_buffer"
# What a module that is compiled in place is to Dynamo, and what `torch.compile(module)` is to it.
_MODEL = re.compile(r"^L\['(?:fn'\]\.__self__|self'\])\.?")
_TORCH_ROOT = os.path.dirname(os.path.abspath(torch.__file__))


def module_path(node: fx.Node) -> str:
    """Module path of the user's model, such as ``transformer.h.0.attn``; empty when not known."""
    # Nodes traced in the backward have the modules of their forward node under the second name.
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    path, _ = list(stack.values())[-1]  # the innermost module
    return _strip_local(str(path))


@lru_cache(maxsize=4096)
def _strip_local(path: str) -> str:
    """Drop Dynamo's prefix, such as ``L['self']``, and turn item access into dots."""
    path = re.sub(r"^L\['\w+'\]\.?", "", _MODEL.sub("", path))
    path = re.sub(r"\.?_modules\['([^']+)'\]", r".\1", path)
    return re.sub(r"\[(?:'([^']+)'|(\d+))\]", lambda m: f".{m[1] or m[2]}", path).strip(".")


@lru_cache(maxsize=4096)
def input_name(source: str) -> str:
    """The user's name of an input of Dynamo's graph, as a program would write it.

    It is ``layers.0.weight`` for a parameter, ``x`` for an argument, and ``x.shape[1]`` for a size of one.
    """
    name = _MODEL.sub("", source)
    name = re.sub(r"^[LG]\['(\w+)'\]", r"\1", name)
    name = re.sub(r"\.size\(\)(\[\d+\])$", r".shape\1", name)
    return re.sub(r"\.?_(?:modules|parameters|buffers)\['([^']+)'\]", r".\1", name).strip(".")


def name_inputs(joint: fx.GraphModule, sources: Sequence[str]) -> None:
    """Store the user's name of each input of a joint graph in its node, and whether it is a buffer.

    Args:
        joint: The joint graph, as AOTAutograd gives it.
        sources: Where each input of Dynamo's graph comes from, see `torch_compat.input_sources`.
    """
    for node in joint.graph.find_nodes(op="placeholder"):
        source = torch_compat.joint_input_source(node, sources)
        node.meta[_NAME], node.meta[_BUFFER] = input_name(source), "._buffers[" in source


def is_buffer(node: fx.Node) -> bool:
    """Whether an input of a joint graph is a buffer of a module."""
    return bool(node.meta.get(_BUFFER))


def input_names(joint: fx.GraphModule) -> dict[str, str]:
    """The user's names of the inputs of a joint graph, by the names of their nodes."""
    return {node.name: node.meta.get(_NAME, "") for node in joint.graph.find_nodes(op="placeholder")}


def source_line(node: fx.Node) -> str:
    """User's source line, such as ``model.py:12``, the innermost frame outside torch; empty when not known."""
    trace = node.meta.get("stack_trace")
    return _innermost_user_frame(trace) if trace else ""


@lru_cache(maxsize=4096)
def _innermost_user_frame(trace: str) -> str:
    # The user's innermost frame, even if it called into torch; torch's own frame only if there is no other.
    frames = [(path, line) for path, line, _ in _FRAME.findall(trace)]
    outside = [f for f in frames if not f[0].startswith(_TORCH_ROOT)]
    chosen = (outside or frames)[-1:]
    return f"{os.path.basename(chosen[0][0])}:{chosen[0][1]}" if chosen else ""
