"""The key under which what was decided for a graph is stored."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.options import RematOptions
from remat_compiler.runtime.plan_store import PlanKey
from remat_compiler.version import __version__


def plan_key(gm: fx.GraphModule, example_inputs: Sequence[Any], options: RematOptions) -> PlanKey:
    """Key of compiling `gm` on inputs like `example_inputs` with `options`; where plans are dumped does not count."""
    settings = {name: value for name, value in asdict(options).items() if name != "dump"}
    return PlanKey(
        graph=_digest(gm, example_inputs),
        options=repr(settings),
        inner_settings=repr((torch.get_num_threads(), torch_compat.inductor_fingerprint())),
        versions=repr((__version__, torch.__version__)),
    )


def _digest(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> str:
    text = hashlib.sha256(gm.code.encode())
    for value in example_inputs:
        text.update(repr(_describe(value)).encode())
    return text.hexdigest()


def _describe(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return str(value)
    kind = "parameter" if isinstance(value, torch.nn.Parameter) else "tensor"
    layout = (tuple(map(str, value.shape)), tuple(map(str, value.stride())), str(value.dtype), str(value.device))
    return (kind, value.requires_grad, *layout)
