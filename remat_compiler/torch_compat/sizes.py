"""Bytes and symbolic sizes."""

from __future__ import annotations

import torch
import torch._prims.rng_prims

CPU_ALIGNMENT_BYTES = 1
CUDA_ALIGNMENT_BYTES = 512
"""Granularity of the caching allocator on CUDA devices; the CPU allocator counts what is asked for."""
UNBACKED_FALLBACK = 4096
"""What torch's partitioner takes for a size that only the data decide."""


def allocated_bytes(value: torch.Tensor) -> int:
    """Bytes that the device's allocator hands out for the storage behind `value`; symbols take their hints."""
    try:
        nbytes = value.untyped_storage().nbytes()
    except NotImplementedError:
        nbytes = value.numel() * value.element_size()
    size = size_hint(nbytes)
    alignment = CUDA_ALIGNMENT_BYTES if value.device.type == "cuda" else CPU_ALIGNMENT_BYTES
    return -(-size // alignment) * alignment


def size_hint(size: int | torch.SymInt) -> int:
    """The size that the traced inputs give; sizes that only the data decide count as torch's fallback."""
    if isinstance(size, int):
        return size
    node = size.node
    hint = node.hint if node.has_hint() else None
    return int(hint) if hint is not None else UNBACKED_FALLBACK


def allocation_alignment(device_type: str) -> int:
    """Bytes to a multiple of which the device's allocator rounds what it is asked for."""
    return CUDA_ALIGNMENT_BYTES if device_type == "cuda" else CPU_ALIGNMENT_BYTES


def symbol_hint(value: torch.SymInt | torch.SymFloat | torch.SymBool) -> int | float | bool | None:
    """The number that a symbol stands for in the traced inputs; None when only the data decide it."""
    node = value.node
    hint: int | float | bool | None = node.hint if node.has_hint() else None
    return hint
