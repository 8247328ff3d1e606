"""How fast a device is: calibrated once in less than 0.3 s, then kept with the measured figures.

Rates are rounded to powers of 2^(1/4), so that two calibrations of one device, or of two equal devices,
usually agree to the bit; rates from the same file on disk always do.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from remat_compiler import torch_compat
from remat_compiler.costs.clock import DEVICE_TYPES, best_ns, elapsed_ns
from remat_compiler.costs.families import FAMILIES, family_rate
from remat_compiler.costs.store import device_name, shared_store

log = logging.getLogger(__name__)

PRODUCT_TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
"""Types whose matrix products are timed; others count as float32."""

_FIGURES = (
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


@dataclass(frozen=True, slots=True)
class Rates:
    """Speed of a device.

    Attributes:
        flops_per_s: Floating point operations per second of a large matrix product, by name of the type.
        efficiency: FLOP rate of other families of kernels relative to the product's, by name of the family; 1 by
            default.
        bytes_per_s: Bytes read plus written per second by a copy larger than the caches.
        special_per_s: Evaluations per second of a special function (erf) on float32.
        overhead_ns: Time to start one operator.
        name: Where the rates come from.
    """

    flops_per_s: Mapping[str, float]
    efficiency: Mapping[str, float]
    bytes_per_s: float
    special_per_s: float
    overhead_ns: int
    name: str

    def kernel_rate(self, family: str, dtype: torch.dtype) -> float:
        """FLOP rate of kernels of the family (see `families.family_of`) on the type."""
        product = self.flops_per_s.get(type_name(dtype), self.flops_per_s["float32"])
        return product * self.efficiency.get(family, 1.0)


NOMINAL = Rates({"float32": 50e9}, {}, bytes_per_s=10e9, special_per_s=math.inf, overhead_ns=1000, name="nominal")
"""Rates of one CPU core, to compare plans between machines."""


_busy: set[str] = set()
"""Types of devices that were too busy or cannot be timed: nominal rates from then on, so that plans agree."""
LEAST_CREDIBLE = 0.2
"""A float32 product below this fraction of the nominal rate was timed on a machine busy with something else;
such figures are not kept."""


def rates_of(device_type: str, directory: Path | None) -> Rates:
    """Rates of the current device of the type: from the store, else calibrated now.

    Args:
        device_type: Type of the device; the nominal rates stand for one that cannot be timed.
        directory: Where figures are kept between processes; `None` keeps them for this process only.
    """
    if device_type not in DEVICE_TYPES or device_type in _busy:
        return NOMINAL
    store = shared_store("rates", directory, least=1)
    figures = store.current()
    # A figure may be missing in a file of another release; all are measured together.
    if any(f"{device_type} {name}" not in figures for name in _FIGURES):
        try:
            measured = calibrate(device_type)
        except RuntimeError as error:
            log.warning("the %s cannot be calibrated (%s); nominal rates stand for it", device_type, error)
            _busy.add(device_type)
            return NOMINAL
        # Kept figures would mislead every later process, so a busy moment must not get that far.
        if measured[f"{device_type} flops_per_s float32"] < LEAST_CREDIBLE * NOMINAL.flops_per_s["float32"]:
            log.warning("the %s is too busy to be calibrated; nominal rates stand for it in this process", device_type)
            _busy.add(device_type)
            return NOMINAL
        store.add(measured)
    # `figures` is a live view of the store, and has the new figures, too.
    rates = {name: figures[f"{device_type} {name}"] for name in _FIGURES}
    return Rates(
        flops_per_s={type_name(t): rates[f"flops_per_s {type_name(t)}"] for t in PRODUCT_TYPES},
        # Relative, so that it carries over to types that were not timed.
        efficiency={f: rates[f"flops_per_s {f}"] / rates["flops_per_s float32"] for f in FAMILIES},
        bytes_per_s=rates["bytes_per_s"],
        special_per_s=rates["special_per_s"],
        overhead_ns=rates["overhead_ns"],
        name=device_name(device_type),
    )


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
