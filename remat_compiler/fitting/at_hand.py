"""Devices that are there, as steps on paper need them: their memory, and how fast they were found to be."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from remat_compiler.devices.cpus import CPU, Cpu, Device
from remat_compiler.devices.gpus import GPUS, Gpu, Limits, gpu_named
from remat_compiler.devices.machine_memory import available_bytes, total_bytes
from remat_compiler.errors import OptionError, UnknownName
from remat_compiler.fitting.paper_process import call_in_process
from remat_compiler.fitting.request import AT_HAND
from remat_compiler.memory_budget import MemoryBudget
from remat_compiler.option_values import shown
from remat_compiler.options import Environment
from remat_compiler.units import format_bytes

_INDEXED = re.compile(rf"{AT_HAND}(?::(\d+))?")


def device_of(device: str | Device, capacity: str | int | None = None) -> Device:
    """The device that a request means: a GPU by its name, one that is there, or one that is given.

    Args:
        device: The device or its name.
        capacity: Memory that a step may have of it; by default what nobody uses of one that is there, else all.

    Raises:
        OptionError: It is to be there, and is not, or is none that can be stood for; or `capacity` is malformed, or
            more than a GPU has.
        UnknownName: No such GPU is known.
    """
    limit = None if capacity is None else _bytes_of(capacity)
    # A `torch.device` reads like its name.
    name = str(device)
    if isinstance(device, Cpu) or name == CPU:
        return _cpu(device if isinstance(device, Cpu) else None, limit)
    indexed = _INDEXED.fullmatch(name)
    gpu = device if isinstance(device, Gpu) else _present(int(indexed[1] or 0)) if indexed else gpu_named(name)
    if limit is None:
        return gpu
    if limit > gpu.usable_bytes:
        raise OptionError(
            f"got capacity={capacity!r}, and {gpu.product} leaves {format_bytes(gpu.usable_bytes)} to torch; name less"
        )
    return replace(gpu, free_bytes=limit)


def _bytes_of(capacity: str | int) -> int:
    """Bytes that the user names; raises `OptionError`."""
    with suppress(OptionError):  # whose words are of the budget
        named = MemoryBudget.parse(capacity).named_bytes
        if named is not None:
            return named
    raise OptionError(f"capacity (--capacity) must be bytes, such as '16GiB' or 17179869184, got {shown(capacity)}")


def _cpu(given: Cpu | None, limit_bytes: int | None) -> Cpu:
    """This machine without its GPUs, or the one that is given."""
    if given is not None:
        return given if limit_bytes is None else replace(given, usable_bytes=limit_bytes)
    cpu: Cpu = call_in_process(_read_cpu_here, limit_bytes, Environment.read().cache_dir)
    return cpu


def _read_cpu_here(limit_bytes: int | None, directory: Path | None) -> Cpu:
    # Imported in the new process alone: this one may do without torch.
    import torch

    from remat_compiler import torch_compat
    from remat_compiler.costs.rates import figures_of
    from remat_compiler.costs.store import device_name

    # Once torch is there, and before anything is measured: the training process has to have it, too.
    usable = available_bytes() if limit_bytes is None else limit_bytes
    if usable is None:
        raise OptionError("this system does not say how much memory it has left; name it by capacity (--capacity)")
    return Cpu(
        product=device_name(CPU),
        threads=torch.get_num_threads(),
        total_bytes=total_bytes() or usable,
        usable_bytes=usable,
        compiler=torch_compat.cpp_compiler() or "",
        figures=figures_of(CPU, directory) or {},
    )


def _present(index: int) -> Gpu:
    """The GPU of that number; a process of its own asks, since a context on the device takes memory to the end."""
    gpu: Gpu = call_in_process(_read_here, index, Environment.read().cache_dir, hide_gpus=False)
    return gpu


def _read_here(index: int, directory: Path | None) -> Gpu:
    # Imported in the new process alone: this one may do without torch.
    import torch

    from remat_compiler.costs.rates import figures_of

    if not torch.cuda.is_available():
        raise OptionError(
            f"got the device {AT_HAND!r}, and torch sees no GPU here; name the one that is meant: {', '.join(GPUS)}, "
            f"or {CPU} to train on the CPU of this machine"
        )
    if torch.version.hip:
        raise OptionError(f"got a GPU of AMD, and only those of NVIDIA can be stood for: {', '.join(GPUS)}")
    if index >= torch.cuda.device_count():
        raise OptionError(f"got the device '{AT_HAND}:{index}', and there are {torch.cuda.device_count()} GPUs here")
    torch.cuda.set_device(index)
    # Before anything is measured, which would count as used.
    free_bytes, _ = torch.cuda.mem_get_info()
    return gpu_from(torch.cuda.get_device_properties(index), index, free_bytes, figures_of("cuda", directory) or {})


def gpu_from(properties: Any, index: int, free_bytes: int, figures: dict[str, int]) -> Gpu:
    """A GPU that is there.

    Args:
        properties: What torch says of it.
        index: Its number.
        free_bytes: Memory that nobody uses.
        figures: What calibration measured of it; empty if it could not be timed, and then its data sheet stands for it.

    Raises:
        OptionError: It could not be timed, and there is no data sheet of it.
    """
    try:
        sheet = gpu_named(properties.name)
    except UnknownName as unknown:
        if not figures:
            raise OptionError(
                f"{properties.name} cannot be timed, and there is no data sheet of it here; try again when it is idle"
            ) from unknown
        sheet = None
    return Gpu(
        name=f"{AT_HAND}:{index}",
        product=properties.name,
        capability=(properties.major, properties.minor),
        sms=properties.multi_processor_count,
        total_bytes=properties.total_memory,
        l2_bytes=properties.L2_cache_size,
        bytes_per_s=sheet.bytes_per_s if sheet else 0.0,
        link_bytes_per_s=sheet.link_bytes_per_s if sheet else 0.0,
        flops_per_s=sheet.flops_per_s if sheet else {},
        source="calibration" if figures else sheet.source if sheet else "",
        of_multiprocessor=Limits(
            threads=properties.max_threads_per_multi_processor,
            shared_bytes=properties.shared_memory_per_multiprocessor,
            optin_bytes=properties.shared_memory_per_block_optin,
        ),
        free_bytes=free_bytes,
        figures=figures,
        peer_bytes_per_s=sheet.peer_bytes_per_s if sheet else 0.0,
    )
