"""The key under which the outcome of a graph is stored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.declared import declared_names
from remat_compiler.costs.declared_workspace import declared_workspaces
from remat_compiler.costs.op_call import tensors_in
from remat_compiler.costs.store import environment
from remat_compiler.options import ONLY_SHOWN, RematOptions
from remat_compiler.plan_cache.cached_planner import code_digest
from remat_compiler.version import __version__


@dataclass(frozen=True, slots=True)
class PlanKey:
    """Everything that decides the plan of a graph.

    Attributes:
        graph: Digest of Dynamo's graph and of its inputs' shapes, strides, types and devices.
        options: The options of the compilation, printed.
        budget: The options' budget in bytes on this device at this time, if it is known before planning.
        costs: Identity of the operators' times, see `costs.table.cost_identity`.
        inner_settings: Everything else that changes the plan or the emitted code, such as the thread count, settings
            of the inner compiler, and what the user declares of operators.
        versions: Versions of this project and of torch, and a digest of the sources.
    """

    graph: str
    options: str
    budget: str
    costs: str
    inner_settings: str
    versions: str

    @property
    def digest(self) -> str:
        """File name of the entry."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


def plan_key(
    gm: fx.GraphModule, example_inputs: Sequence[Any], options: RematOptions, budget_bytes: int | None, costs: str
) -> PlanKey:
    """Key of compiling `gm` on inputs like `example_inputs`; options that only show something do not count.

    Args:
        gm: Dynamo's graph.
        example_inputs: Its inputs.
        options: The user's options.
        budget_bytes: The budget in bytes, if known; ``"auto"`` depends on what the device has left.
        costs: Identity of the operators' times, see `costs.table.cost_identity`.
    """
    settings = {name: value for name, value in asdict(options).items() if name not in ONLY_SHOWN}
    del settings["memory_budget"]["written"]  # "1GiB" and "1024MiB" are one budget
    return PlanKey(
        graph=_digest(gm, example_inputs),
        options=repr(settings),
        budget=repr(budget_bytes),
        costs=costs,
        inner_settings=repr(
            (environment(), _modes(), torch_compat.inductor_fingerprint(), declared_names(), declared_workspaces())
        ),
        # Forms of what operators take inside are code, so an outcome of other code may have other figures.
        versions=repr((__version__, torch.__version__, code_digest("remat_compiler"))),
    )


def parameter_shapes(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> str:
    """Digest of the shapes and types of the parameters of `gm`, which are among its inputs or within it.

    Joint graphs do not tell parameters from the model's data; a model of another width has another digest.
    """
    given = [value for value in example_inputs if isinstance(value, torch.nn.Parameter)]
    described = [(tuple(map(str, one.shape)), str(one.dtype)) for one in (*given, *gm.parameters())]
    return hashlib.sha256(repr(described).encode()).hexdigest()


def devices_of(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> set[torch.device]:
    """The devices that the graph computes on, as far as Dynamo knows them."""
    # The nodes, too: a graph without tensor inputs may make its tensors on a device.
    values = [*example_inputs, *(node.meta.get("example_value") for node in gm.graph.nodes)]
    return {tensor.device for tensor in tensors_in(values)} or {torch.device("cpu")}


def _digest(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> str:
    text = hashlib.sha256()
    for name, module in gm.named_modules():
        # The code of a graph only names the bodies of its checkpoint regions, so each body is added itself.
        if isinstance(module, fx.GraphModule):
            text.update(f"{name}\n{module.code}\n".encode())
    # Devices by the order in which they come, so that the ranks of a job, each on a device of its own, have one key.
    devices: dict[torch.device, int] = {}
    for value in example_inputs:
        text.update(repr(_describe(value, devices)).encode())
    return text.hexdigest()


def _modes() -> tuple[object, ...]:
    """Modes around the call that change the joint graph, but do not show in Dynamo's graph."""
    autocast = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")]
    return (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast)


def _describe(value: Any, devices: dict[torch.device, int]) -> Any:
    if not isinstance(value, torch.Tensor):
        return str(value)
    kind = "parameter" if isinstance(value, torch.nn.Parameter) else "tensor"
    # Its gradient may leave within the backward.
    hooked = bool(value._post_accumulate_grad_hooks)
    device = (value.device.type, devices.setdefault(value.device, len(devices)))
    layout = (tuple(map(str, value.shape)), tuple(map(str, value.stride())), str(value.dtype), device)
    return (kind, value.requires_grad, hooked, *layout)
