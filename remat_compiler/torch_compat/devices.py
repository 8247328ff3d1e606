"""Memory, rates and settings of the devices that are there."""

from __future__ import annotations

from typing import Any

import torch

from remat_compiler.devices.gpus import Gpu, gpu_like
from remat_compiler.devices.machine_memory import total_bytes
from remat_compiler.log import logger_of
from remat_compiler.torch_compat.optimizer_state import state_to_come
from remat_compiler.torch_compat.sharded_modules import sharded_now
from remat_compiler.units import format_bytes


def free_device_bytes(example_inputs: Any) -> int | None:
    """Bytes that the accelerator of the inputs has left for a step; `None` on a CPU, which has no such limit.

    That is the unused memory, less that of the first step of this process's optimizers (`optimizer_state`), rounded
    down by less than 2 %, so that processes with about the same free memory make the same plan.
    """
    devices = {x.device for x in example_inputs if isinstance(x, torch.Tensor) and x.device.type == "cuda"}
    if not devices:
        return None
    free = [_free_on(device, example_inputs) for device in sorted(devices, key=str)]
    # What is gathered now is a part of the step, and let go of in it.
    gathered = sharded_now()
    # The same budget holds on each device, so the fullest one decides.
    return _rounded_down(max(min(free) + (0 if gathered is None else gathered.during_bytes), 1))


def _free_on(device: torch.device, inputs: Any) -> int:
    unused, total = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    # The driver does not know how much of the device the program lets this process have.
    unused = min(unused, int(torch.cuda.get_per_process_memory_fraction(device) * total) - reserved)
    # It counts as used what torch's allocator holds in reserve; a step can have it, but for pieces among small tensors.
    statistics = torch.cuda.memory_stats_as_nested_dict(device)
    pieces = statistics["inactive_split_bytes"]["small_pool"]["current"] if statistics else 0
    cached = reserved - torch.cuda.memory_allocated(device) - pieces
    kept = int(DEVICE_RESERVE * total)
    left, state = unused + cached - kept, state_to_come(inputs, device)
    # An optimizer that keeps less than was assumed may be what makes the step possible.
    taken = state.size_bytes if state.is_known or state.size_bytes < left else 0
    log.info(
        '"auto" on %s: %s are left for a step, of %s that are unused and %s in reserve, less %s for the driver and '
        "%s for the state of optimizers to come%s",
        device, *map(format_bytes, (left - taken, unused, cached, kept, taken)),
        "" if state.is_known or not taken else " (taken for AdamW's)",
    )  # fmt: skip
    return left - taken


def total_device_bytes(example_inputs: Any) -> int | None:
    """Total memory of the device that the inputs lie on: of the smallest accelerator, else of the machine."""
    devices = {x.device for x in example_inputs if isinstance(x, torch.Tensor) and x.device.type == "cuda"}
    if devices:
        return min(int(torch.cuda.mem_get_info(device)[1]) for device in devices)
    return total_bytes()


def gpu_at_hand() -> Gpu:
    """The data sheet of the current GPU, or of one that stands for it."""
    found = torch.cuda.get_device_properties()
    return gpu_like(found.name, (found.major, found.minor), found.multi_processor_count)


def float32_precisions() -> tuple[str, str, str]:
    """How float32 is computed with: in products and convolutions on a GPU, and in products on a CPU."""
    # Not by the older names: those raise an error once the program has set one of these.
    backends: Any = torch.backends
    parts = (backends.cuda.matmul, backends.cudnn.conv, backends.mkldnn.matmul)
    cuda, cudnn, cpu = (str(part.fp32_precision) for part in parts)
    return cuda, cudnn, cpu


def uses_cuda() -> bool:
    """Whether this process has used a GPU so far."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def keep_device_busy() -> None:
    """Have the current GPU do nothing for about a millisecond, in the order of its stream; returns at once."""
    torch.cuda._sleep(_CYCLES)  # type: ignore[no-untyped-call]


_CYCLES = 1_500_000
"""A GPU has 1 to 2 of them in a nanosecond."""


def _rounded_down(count: int) -> int:
    """`count` with all but its seven leading binary digits set to 0."""
    dropped = max(count.bit_length() - 7, 0)  # less than 1 part in 2**6
    return count >> dropped << dropped


log = logger_of(__name__)

DEVICE_RESERVE = 0.05
"""Part of an accelerator's memory left to the driver, libraries and fragmentation."""
