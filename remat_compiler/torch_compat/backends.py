"""The interpreter, devices, and what Dynamo lets through to the user."""

from __future__ import annotations

import hashlib
import math
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from torch import fx
from torch._dynamo import config as dynamo_config
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import RestartAnalysis, ShortenTraceback
from torch._inductor import config as inductor_config
from torch._inductor import cpp_builder
from torch._inductor.custom_graph_pass import CustomPartitionerFn

from remat_compiler.torch_compat.forward_arguments import stop_at_forward
from remat_compiler.torch_compat.patches import STEP_CACHE
from remat_compiler.torch_compat.patching import settings

DynamoRestart = RestartAnalysis
"""What leaves a compilation where Dynamo is to trace the function anew, with what was learnt of it."""


def compile_with_interpreter(gm: fx.GraphModule, example_inputs: Any, partitioner: CustomPartitionerFn) -> Any:
    """Compile Dynamo's graph with an FX interpreter that frees every value at its last use.

    Buffers are changed within the graph: what the wrapper around it changes is not planned, so not predicted.
    """
    backend = aot_autograd(
        fw_compiler=_interpret, bw_compiler=_interpret, partition_fn=partitioner, keep_inference_input_mutations=True
    )
    return backend(gm, example_inputs)


def _interpret(gm: fx.GraphModule, example_inputs: Any) -> Callable[[list[Any]], Any]:
    def run(arguments: list[Any]) -> Any:
        stop_at_forward(arguments)
        return StepInterpreter(gm).boxed_run(arguments)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


class StepInterpreter(fx.Interpreter):
    """An interpreter for steps: it takes no part in tracing, and copies where a traced view cannot be made.

    Some operators lay their results out otherwise than torch traced them, batch norm of a transposed input, say.
    """

    def run_node(self, n: fx.Node) -> Any:
        """The value of one node.

        torch's own method writes the node down as what is traced now, once for all threads: one that traces meanwhile
        would take it for its own.
        """
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        return getattr(self, n.op)(n.target, args, kwargs)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """The value of one call."""
        if target is not torch.ops.aten.view.default:
            return super().call_function(target, args, kwargs)
        value, shape = args
        try:
            return value.view(shape)
        except RuntimeError:
            return value.reshape(shape)


def needs_gradients(example_inputs: Any) -> bool:
    """Whether AOTAutograd compiles a backward for these inputs, as far as they tell."""
    return torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in example_inputs)


def partitioner_always_runs() -> AbstractContextManager[None]:
    """Within the block no joint graph is skipped because AOTAutograd's cache has what was made of it."""
    return settings({STEP_CACHE: False})


def free_device_bytes(example_inputs: Any) -> int | None:
    """Bytes that the accelerator of the inputs has left for a step; `None` on a CPU, which has no such limit.

    Rounded down by less than 2 %, so that runs that find about the same make the same plan.
    """
    devices = {x.device for x in example_inputs if isinstance(x, torch.Tensor) and x.device.type == "cuda"}
    if not devices:
        return None
    free = []
    for device in sorted(devices, key=str):
        unused, total = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        free.append(int(unused + cached - DEVICE_RESERVE * total))
    return _rounded_down(max(min(free), 1))


def total_device_bytes(example_inputs: Any) -> int | None:
    """Memory of the device that the inputs lie on, in use or not: of the smallest accelerator, else of the machine."""
    devices = {x.device for x in example_inputs if isinstance(x, torch.Tensor) and x.device.type == "cuda"}
    if devices:
        return min(int(torch.cuda.mem_get_info(device)[1]) for device in devices)
    names = ("SC_PAGE_SIZE", "SC_PHYS_PAGES")
    return math.prod(map(os.sysconf, names)) if all(name in os.sysconf_names for name in names) else None


def _rounded_down(count: int) -> int:
    """`count` with all but its seven leading binary digits set to 0."""
    dropped = max(count.bit_length() - 7, 0)
    return count >> dropped << dropped


DEVICE_RESERVE = 0.05
"""Part of an accelerator's memory left to the driver, libraries and fragmentation."""


_ARGS: Any = BaseException.args
"""The arguments of an exception, whatever a class makes of them."""


class _Shown(ShortenTraceback):
    """What Dynamo lets through as it is, without its own frames and without the advice to report a bug to PyTorch."""

    def remove_dynamo_frames(self) -> Any:
        """Dynamo calls this before it raises the exception to the user: of the traceback, nothing concerns them."""
        return self if dynamo_config.verbose else self.with_traceback(None)

    @property
    def args(self) -> tuple[Any, ...]:
        """What it was made of: what Dynamo writes there, its advice and the place in the user's code, is left out."""
        return cast("tuple[Any, ...]", _ARGS.__get__(self))

    @args.setter
    def args(self, advised: tuple[Any, ...]) -> None:
        pass


def shown_to_user(error: Exception) -> Exception:
    """An exception of the same type that Dynamo hands to the user as it is, rather than wrapped."""
    kind = type(error)
    shown = type(kind.__name__, (kind, _Shown), {"__module__": kind.__module__})
    copied: Exception = shown.__new__(shown, *error.args)
    copied.__dict__.update(error.__dict__)
    _ARGS.__set__(copied, error.args)
    copied.first_useful_frame = None  # type: ignore[attr-defined]
    return copied


def cpp_compiler() -> str | None:
    """Path of the C++ compiler that Inductor would run; `None` where it finds none."""
    try:
        command = cpp_builder.get_cpp_compiler()
    except RuntimeError:  # also what Inductor raises of its own
        return None
    return shutil.which(command)


def inductor_fingerprint() -> str:
    """Digest of Inductor's configuration."""
    return hashlib.sha256(repr(sorted(inductor_config.get_config_copy().items(), key=str)).encode()).hexdigest()
