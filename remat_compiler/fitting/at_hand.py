"""The GPU that is there, as steps on paper need it: what the driver says of it, and how fast it was found to be."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from remat_compiler.devices.gpus import GPUS, Gpu, Limits, gpu_named
from remat_compiler.errors import OptionError, UnknownName
from remat_compiler.fitting.paper_process import call_in_process
from remat_compiler.fitting.request import AT_HAND
from remat_compiler.options import Environment

_INDEXED = re.compile(rf"{AT_HAND}(?::(\d+))?")


def gpu_of(device: str | Gpu) -> Gpu:
    """The GPU that a request means: one by its name, the one that is there, or one that is given.

    Raises:
        OptionError: It is to be there, and is not, or is none that can be stood for.
        UnknownName: No such GPU is known.
    """
    if isinstance(device, Gpu):
        return device
    # A `torch.device` reads like its name.
    name = str(device)
    found = _INDEXED.fullmatch(name)
    return _present(int(found[1] or 0)) if found else gpu_named(name)


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
            f"got the device {AT_HAND!r}, and torch sees no GPU here; name the one that is meant: {', '.join(GPUS)}"
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
