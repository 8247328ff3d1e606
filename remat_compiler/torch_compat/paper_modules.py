"""Modules of fake tensors that are moved or cast: ``model.to(torch.bfloat16)``, ``model.half()``, ``model.cuda()``.

Parameters that are fake are exchanged for others by `torch.utils.swap_tensors`, which refuses tensors that anybody
refers to weakly, as the table of the fake mode does: https://github.com/pytorch/pytorch/issues/195996.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from remat_compiler.torch_compat.paper_rows import SWAP
from remat_compiler.torch_compat.patching import replaced


def enter_modules(stack: ExitStack) -> None:
    """Let modules of fake tensors be moved and cast until `stack` is closed.

    Raises:
        UnsupportedTorch: This torch lacks something that is changed.
    """
    stack.enter_context(replaced(SWAP, _forgetting))


def _forgetting(swap: Callable[[torch.Tensor, torch.Tensor], None]) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """The exchange, of which fake modes do not know: they make an entry anew if they need one."""

    def swap_tensors(t1: torch.Tensor, t2: torch.Tensor) -> None:
        for tensor in (t1, t2):
            if isinstance(tensor, FakeTensor):
                _forget(tensor.fake_mode.fake_tensor_converter.tensor_memo, tensor)
        swap(t1, t2)

    return swap_tensors


def _forget(memo: Any, tensor: FakeTensor) -> None:
    """Drop the entries of a `weakref.WeakValueDictionary` for the tensor, and with them its references."""
    for reference in weakref.getweakrefs(tensor):
        if isinstance(reference, weakref.KeyedRef) and memo.data.get(reference.key) is reference:
            del memo.data[reference.key]
