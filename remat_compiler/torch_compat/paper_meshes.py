"""Meshes of ranks, for steps on paper: which rank is where is known, though tensors hold nothing.

torch keeps the ranks of a `DeviceMesh` in a tensor, compares them, and takes them for indices.  These tensors stay
real: what makes and reads them runs outside of the modes in which tensors are fake.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from remat_compiler.torch_compat.paper_rows import MESH, MESH_GROUPS, MESH_PARTS, MESH_TENSOR
from remat_compiler.torch_compat.paper_values import real_value
from remat_compiler.torch_compat.patching import replaced


def enter_meshes(stack: ExitStack) -> None:
    """Let meshes of any number of dimensions be made and read until `stack` is closed.

    Raises:
        UnsupportedTorch: This torch lacks something that is changed.
    """
    # A build without it has no meshes either.
    if not torch.distributed.is_available():
        return
    for row in (MESH, MESH_GROUPS, MESH_PARTS):
        stack.enter_context(replaced(row, _on_real_tensors))
    stack.enter_context(replaced(MESH_TENSOR, lambda found: property(_on_real_tensors(found.fget), doc=found.__doc__)))


def _on_real_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function outside of fake modes; tensors among its arguments have their values, as far as these are known."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map_only(torch.Tensor, real_value, (args, kwargs))
        with _disable_current_modes(), torch.device("cpu"):
            return function(*args, **kwargs)

    return run
