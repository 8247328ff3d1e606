"""A device on paper, such as a GPU that is not there: torch captures, differentiates and generates code for it.

All of it happens on fake tensors.

    with paper_device("h100"), emitted_on_paper(), FakeTensorMode(allow_non_fake_inputs=True), torch.device("cuda"):
        model = torch.compile(GPT(), backend="remat", options={"memory_budget": "20GiB"})
        model(tokens, targets).backward()

Nothing is computed and no driver is needed; Inductor's wrappers are emitted as for that GPU, and with
`dry_run.paper_run.emitted_on_paper` they run, without their kernels.
Much of torch is changed for it, and caches within torch keep what was asked under the change: use a process of its own,
that does nothing else before or after.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from remat_compiler.devices.cpus import Cpu, Device
from remat_compiler.devices.gpus import Gpu, gpu_named
from remat_compiler.errors import OptionError
from remat_compiler.torch_compat.paper_attention import enter_attention
from remat_compiler.torch_compat.paper_autograd import enter_autograd
from remat_compiler.torch_compat.paper_cuda import enter_cuda
from remat_compiler.torch_compat.paper_inductor import enter_generation, enter_inductor
from remat_compiler.torch_compat.paper_kernels import enter_kernels
from remat_compiler.torch_compat.paper_meshes import enter_meshes
from remat_compiler.torch_compat.paper_modules import enter_modules
from remat_compiler.torch_compat.paper_values import enter_values

_present: list[Device] = []


def is_on_paper() -> bool:
    """Whether this process runs steps on fake tensors that stand for the user's, and computes nothing."""
    return bool(_present)


def paper_gpu() -> Gpu | None:
    """The GPU that this process stands for; `None` if ``cuda`` is what it is."""
    found = _present[-1] if _present else None
    return found if isinstance(found, Gpu) else None


def paper_cpu() -> Cpu | None:
    """The CPU for which this process runs steps on paper; `None` if it runs none, or for a GPU."""
    found = _present[-1] if _present else None
    return found if isinstance(found, Cpu) else None


@contextmanager
def paper_device(device: str | Device) -> Iterator[Device]:
    """Within the block steps are on paper: for a CPU, or for a GPU, which is then what ``cuda`` means.

    Args:
        device: The device, or the name of a GPU (see `devices.gpus.GPUS`).

    Raises:
        UnknownName: No such GPU is known.
        OptionError: A real GPU is there, or the process stands for a device already.
        UnsupportedTorch: This torch lacks something that is changed.
    """
    found = gpu_named(device) if isinstance(device, str) else device
    if _present:
        raise OptionError(
            f"got {found.name}, while this process stands for {_present[-1].name}; use a process for each"
        )
    if torch.cuda.is_available():
        raise OptionError(
            f"got {found.name} on paper, where a GPU is there; set CUDA_VISIBLE_DEVICES= before torch is imported"
        )
    with ExitStack() as stack:
        if isinstance(found, Gpu):
            enter_autograd(stack, torch.device("cuda", 0))
            enter_cuda(stack, found)
            enter_attention(stack, found)
            enter_kernels(stack)
            enter_inductor(stack, found)
        enter_generation(stack)
        enter_meshes(stack)
        enter_modules(stack)
        enter_values(stack)
        _present.append(found)
        stack.callback(_present.pop)
        yield found
