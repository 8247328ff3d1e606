"""Measure how fast a device is: in less than 0.5 s if it is idle, in a few seconds if others use it.

Other users of the device make it look slower, never faster, so the best of some samples counts, and only once
another one confirms it; on a CPU, the time during which another program has the core does not count.  Rates are rounded
to powers of 2^(1/4), so that two calibrations of one device, or of two equal devices, usually agree to the bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TypeVar

import torch

from remat_compiler import torch_compat
from remat_compiler.costs.clock import best_computing_ns
from remat_compiler.costs.families import FAMILIES, family_rate
from remat_compiler.devices.gpus import Gpu

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
_SPECIAL_BYTES = 2**18
"""Small enough for a CPU's second-level cache, so that the function is timed rather than the memory."""
SPECIAL_FLOPS = 40
"""Float32 operations in whose time a GPU evaluates a special function, such as erf: 20 instructions (a polynomial, an
exponential and a selection), each in the place of a multiplication with an addition."""
_LAUNCHES = 100

Figure = TypeVar("Figure", int, float)

AGREE = 2.0**0.125
"""The two best samples of a figure confirm each other up to this factor: half a step of the rounding."""
MOST_ROUNDS = 16
"""Samples of each figure at most."""
PAUSE_S = 0.01
"""Pause before a sample is repeated: a process that slept is not the first to be interrupted."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured of a device.

    Attributes:
        figures: Rounded, by their names in the store.
        unconfirmed: Names of those of which no two samples were near each other.
    """

    figures: dict[str, int]
    unconfirmed: tuple[str, ...] = ()


def calibrate(device_type: str) -> Calibration:
    """Measure the rates of the current device.

    Raises:
        RuntimeError: The device has no memory left for it, or lacks an operator.
    """
    probes = _probes(device_type)
    samples: dict[str, list[float]] = {name: [] for name in probes}
    with torch_compat.outside_tracing(), torch.no_grad():
        for turn in range(MOST_ROUNDS):
            # Round by round, since two samples of one moment share its load.
            open_ = [name for name in probes if not is_confirmed(name, samples[name])]
            if not open_:
                break
            for name in open_:
                if turn > 1:
                    time.sleep(PAUSE_S)
                samples[name].append(probes[name]())
    figures = {f"{device_type} {name}": rounded(best_confirmed(name, found)) for name, found in samples.items()}
    unconfirmed = [f"{device_type} {name}" for name, found in samples.items() if not any(_confirmed(name, found))]
    return Calibration(figures, tuple(unconfirmed))


def is_confirmed(name: str, samples: Sequence[float]) -> bool:
    """Whether the best sample of a figure is near the second best."""
    return next(_confirmed(name, samples), None) == best_first(name, samples)[0] if samples else False


def best_confirmed(name: str, samples: Sequence[float]) -> float:
    """The best sample that has another one near it; the best of all if there is none."""
    return next(_confirmed(name, samples), best_first(name, samples)[0])


def _confirmed(name: str, samples: Sequence[float]) -> Iterator[float]:
    """Samples that the next worse one is near, the best first."""
    for one, other in pairwise(best_first(name, samples)):
        if max(one, other) <= AGREE * min(one, other):
            yield one


def best_first(name: str, samples: Iterable[Figure]) -> list[Figure]:
    """Samples of a figure, by its name with or without a device: times from the least, rates from the largest."""
    return sorted(samples, reverse=not name.endswith("overhead_ns"))


def _probes(device_type: str) -> dict[str, Callable[[], float]]:
    """What measures each figure once."""
    probes: dict[str, Callable[[], float]] = {
        f"flops_per_s {type_name(t)}": partial(_product_rate, device_type, t) for t in PRODUCT_TYPES
    }
    probes |= {f"flops_per_s {family}": partial(family_rate, family, device_type) for family in FAMILIES}
    probes["bytes_per_s"] = partial(_copy_rate, device_type)
    probes["special_per_s"] = partial(_special_rate, device_type)
    probes["overhead_ns"] = partial(_overhead_ns, device_type)
    return probes


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

    best_of = partial(best_computing_ns, multiply, device_type, most=3, seconds=0.003)
    # Small products are ruled by overhead, so the size doubles until the time is well measurable.
    while taken_ns < _LONG_ENOUGH_NS and extent < _LARGEST_PRODUCT[device_type]:
        extent *= 2
        factor = torch.full((extent, extent), 0.5, dtype=dtype, device=device_type)
        multiply()  # the library sets itself up
        # An interrupted call would stop the search at a size that is slower for each operation.
        taken_ns = best_of()
    # A product of n x n matrices takes n^3 multiplications and as many additions.
    return 2 * extent**3 / min(best_of(), taken_ns) * 1e9


def _copy_rate(device_type: str) -> float:
    source = torch.zeros(_COPY_BYTES[device_type], dtype=torch.uint8, device=device_type)
    target = torch.zeros_like(source)
    # A copy reads each byte and writes it.
    best = best_computing_ns(lambda: target.copy_(source), device_type, most=4, seconds=0.012)
    return 2 * source.nbytes / best * 1e9


def special_rate(gpu: Gpu) -> float:
    """Evaluations of a special function per second on a GPU, by its data sheet."""
    return gpu.flops_per_s["float32"] / SPECIAL_FLOPS


def _special_rate(device_type: str) -> float:
    # Any kernel of torch's own for such a function on a GPU takes as long as its memory, and would time that.
    if device_type == "cuda":
        return special_rate(torch_compat.gpu_at_hand())
    values = torch.full((_SPECIAL_BYTES // 4,), 0.5, dtype=torch.float32, device=device_type)
    out = torch.empty_like(values)
    erf = partial(torch.erf, values, out=out)
    return values.numel() / best_computing_ns(erf, device_type, most=10, seconds=0.003) * 1e9


def _overhead_ns(device_type: str) -> float:
    """Time that one operator adds to a row of small ones."""
    value = torch.zeros(8, dtype=torch.float32, device=device_type)
    add = torch.ops.aten.add.Tensor

    def launch() -> None:
        for _ in range(_LAUNCHES):
            add(value, value)

    # So little data that the time is that of starting the operator.
    return best_computing_ns(launch, device_type, most=5, seconds=0.003) / _LAUNCHES
