"""Measure how fast a device is, in less than 0.3 s.

Rates are rounded to powers of 2^(1/4), so that two calibrations of one device, or of two equal devices,
usually agree to the bit.
"""

from __future__ import annotations

import math

import torch

from remat_compiler import torch_compat
from remat_compiler.costs.clock import best_ns, elapsed_ns
from remat_compiler.costs.families import FAMILIES, family_rate

PRODUCT_TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
"""Types whose matrix products are timed; others count as float32."""

FIGURES = (
    *(f"flops_per_s {str(kind).removeprefix('torch.')}" for kind in (*PRODUCT_TYPES, *FAMILIES)),
    "bytes_per_s",
    "special_per_s",
    "overhead_ns",
)
"""Names of the calibrated figures in the store, each after the type of its device."""

_STEPS_PER_OCTAVE = 4
_LARGEST_PRODUCT = {"cpu": 2048, "cuda": 8192}
_LONG_ENOUGH_NS = 1_000_000
_COPY_BYTES = {"cpu": 16 * 2**20, "cuda": 256 * 2**20}
"""Larger than the caches: between forward and backward, activations do not stay in them either."""
_SPECIAL_BYTES = {"cpu": 2**18, "cuda": 2**26}
"""On a CPU small enough for the second-level cache, so that the function is timed rather than the memory."""
_LAUNCHES = 100


def calibrate(device_type: str) -> dict[str, int]:
    """Measure the rates of the current device, rounded, by their names in the store.

    Raises:
        RuntimeError: The device has no memory left for it, or lacks an operator.
    """
    with torch_compat.outside_tracing(), torch.no_grad():
        # Twice, apart in time, so that a moment in which the device was busy with something else does not count.
        first, second = _measured(device_type), _measured(device_type)
    best = {name: (min if name == "overhead_ns" else max)(first[name], second[name]) for name in first}
    return {f"{device_type} {name}": rounded(figure) for name, figure in best.items()}


def _measured(device_type: str) -> dict[str, float]:
    found = {f"flops_per_s {type_name(t)}": _product_rate(device_type, t) for t in PRODUCT_TYPES}
    found |= {f"flops_per_s {family}": family_rate(family, device_type) for family in FAMILIES}
    found["bytes_per_s"] = _copy_rate(device_type)
    found["special_per_s"] = _special_rate(device_type)
    found["overhead_ns"] = _overhead_ns(device_type)
    return found


def rounded(figure: float) -> int:
    """The nearest power of 2^(1/4), as a whole number from 1 up."""
    # The exponent is rounded: the error is relative, the same for slow and fast devices.
    exponent = round(_STEPS_PER_OCTAVE * math.log2(max(figure, 1.0))) / _STEPS_PER_OCTAVE
    return round(math.pow(2.0, exponent))


def type_name(dtype: torch.dtype) -> str:
    """Name of the type without ``torch.``."""
    return str(dtype).removeprefix("torch.")


def _product_rate(device_type: str, dtype: torch.dtype) -> float:
    """Operations per second of the first square product that takes long enough to be timed well."""
    extent, taken_ns = 64, 0
    factor = torch.empty(0)

    def multiply() -> None:
        torch.mm(factor, factor)

    # Small products are ruled by overhead, so the size doubles until the time is well measurable.
    while taken_ns < _LONG_ENOUGH_NS and extent < _LARGEST_PRODUCT[device_type]:
        extent *= 2
        factor = torch.full((extent, extent), 0.5, dtype=dtype, device=device_type)
        multiply()  # the library sets itself up
        taken_ns = elapsed_ns(multiply, device_type)
    best = best_ns(multiply, device_type, most=3, seconds=0.003)
    # A product of n x n matrices takes n^3 multiplications and as many additions.
    return 2 * extent**3 / min(best, taken_ns) * 1e9


def _copy_rate(device_type: str) -> float:
    source = torch.zeros(_COPY_BYTES[device_type], dtype=torch.uint8, device=device_type)
    target = torch.zeros_like(source)
    # A copy reads each byte and writes it.
    return 2 * source.nbytes / best_ns(lambda: target.copy_(source), device_type, most=4, seconds=0.012) * 1e9


def _special_rate(device_type: str) -> float:
    values = torch.full((_SPECIAL_BYTES[device_type] // 4,), 0.5, device=device_type)
    out = torch.empty_like(values)
    return values.numel() / best_ns(lambda: torch.erf(values, out=out), device_type, most=10, seconds=0.003) * 1e9


def _overhead_ns(device_type: str) -> float:
    """Time that one operator adds to a row of small ones."""
    value = torch.zeros(8, device=device_type)
    add = torch.ops.aten.add.Tensor

    def launch() -> None:
        for _ in range(_LAUNCHES):
            add(value, value)

    # So little data that the time is that of starting the operator.
    return best_ns(launch, device_type, most=5, seconds=0.003) / _LAUNCHES
