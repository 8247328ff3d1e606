"""How fast a device is: calibrated once, then kept with the measured figures; or told by its data sheet.

A data sheet, which stands for a GPU that is not there, gives the most that the hardware can do; kernels reach a part of
it.  These parts are assumptions, the same for every GPU, and nothing was measured for them.  Plans hang on the ratio of
arithmetic to memory traffic, which the data sheet tells well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from remat_compiler import torch_compat
from remat_compiler.costs.calibration import FIGURES, PRODUCT_TYPES, calibrate, special_rate, type_name
from remat_compiler.costs.clock import DEVICE_TYPES
from remat_compiler.costs.families import FAMILIES
from remat_compiler.costs.peers import CPU_PEERS, NOMINAL_PEERS, Peers, peers_of
from remat_compiler.costs.plausible import better, implausible
from remat_compiler.costs.store import FigureStore, device_name, shared_store
from remat_compiler.devices.gpus import Gpu
from remat_compiler.log import logger_of

log = logger_of(__name__)


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
        peers: The link to the other ranks of a job.
        on_gpu: Whether arithmetic on elements runs beside their transfers, with the weights that it has on a GPU.
    """

    flops_per_s: Mapping[str, float]
    efficiency: Mapping[str, float]
    bytes_per_s: float
    special_per_s: float
    overhead_ns: int
    name: str
    peers: Peers = NOMINAL_PEERS
    on_gpu: bool = False

    def kernel_rate(self, family: str, dtype: torch.dtype) -> float:
        """FLOP rate of kernels of the family (see `operators.table.family_of`) on the type."""
        product = self.flops_per_s.get(type_name(dtype), self.flops_per_s["float32"])
        return product * self.efficiency.get(family, 1.0)


NOMINAL = Rates({"float32": 50e9}, {}, bytes_per_s=10e9, special_per_s=math.inf, overhead_ns=1000, name="nominal")
"""Rates of one CPU core, to compare plans between machines."""


_busy: set[str] = set()
"""Types of devices that were too busy or cannot be timed: not tried again, so that plans agree."""
_repeated: set[str] = set()
"""Types of devices that were calibrated in this process."""
REPEATED = "calibrations"
"""Name of the number of times that the kept figures were measured."""
MOST_REPEATED = 3
"""A device that stays implausible is so."""
LEAST_CREDIBLE = 0.2
"""A float32 product below this fraction of the nominal rate was timed on a machine busy with something else;
such figures are not kept."""


def rates_of(device_type: str, directory: Path | None) -> Rates:
    """Rates of the current device of the type: from the store, else calibrated now.

    Args:
        device_type: Type of the device; for one that cannot be timed, the data sheet stands if it is a GPU, else the
            nominal rates.
        directory: Where figures are kept between processes; `None` keeps them for this process only.
    """
    gpu, cpu = torch_compat.paper_gpu(), torch_compat.paper_cpu()
    if gpu is not None and device_type == "cuda":
        return paper_rates(gpu)
    # What a CPU was found to do as the step was asked about holds for the whole answer.
    figures = (cpu.figures or None) if cpu and device_type == "cpu" else figures_of(device_type, directory)
    if device_type == "cuda":
        sheet = torch_compat.gpu_at_hand()
        return paper_rates(sheet if figures is None else replace(sheet, product=device_name("cuda"), figures=figures))
    return NOMINAL if figures is None else _rates_by(figures, device_name(device_type), CPU_PEERS)


def figures_of(device_type: str, directory: Path | None) -> dict[str, int] | None:
    """What was measured of the current device of the type, by the names in `FIGURES`; `None` if it cannot be timed.

    Figures that were kept are measured once more if they are not plausible beside each other, and the better ones kept.

    Args:
        device_type: Type of the device.
        directory: As for `rates_of`.
    """
    if device_type not in DEVICE_TYPES or device_type in _busy:
        return None
    store = shared_store("rates", directory, least=1)
    figures = store.current()
    # A figure may be missing in a file of another release; all are measured together.
    is_known = all(f"{device_type} {name}" in figures for name in FIGURES)
    if not is_known or _is_to_be_repeated(device_type, figures):
        try:
            found = calibrate(device_type)
        except RuntimeError as error:
            log.warning(
                "the %s cannot be calibrated (%s); %s stands for it", device_type, error, _stand_in(device_type)
            )
            _busy.add(device_type)
            return None
        _repeated.add(device_type)
        _keep(store, device_type, better(found.figures, figures) if is_known else found.figures, found.unconfirmed)
        # Kept figures would mislead every later process, so a busy moment must not get that far.
        if _is_too_slow(device_type, figures):
            stand_in = _stand_in(device_type)
            log.warning("the %s is too busy to be calibrated; %s stands for it in this process", device_type, stand_in)
            _busy.add(device_type)
            return None
    # `figures` is a live view of the store, and has the new figures, too.
    return {name: figures[f"{device_type} {name}"] for name in FIGURES}


def _stand_in(device_type: str) -> str:
    """What stands for a device that is not timed."""
    return "its data sheet, or that of a like one," if device_type == "cuda" else "a device of nominal rates"


def _is_to_be_repeated(device_type: str, figures: Mapping[str, int]) -> bool:
    """Whether kept figures are not plausible, and were not measured again too often; once in a process at most."""
    if device_type in _repeated or figures.get(f"{device_type} {REPEATED}", 1) >= MOST_REPEATED:
        return False
    return bool(implausible(device_type, figures))


def _is_too_slow(device_type: str, figures: Mapping[str, int]) -> bool:
    """Whether the device was busy with something else all the while."""
    return figures[f"{device_type} flops_per_s float32"] < LEAST_CREDIBLE * NOMINAL.flops_per_s["float32"]


def _keep(store: FigureStore, device_type: str, figures: dict[str, int], unconfirmed: Sequence[str]) -> None:
    """Keep figures for later processes; only for this one, if some were not confirmed or the device is too slow."""
    if unconfirmed or _is_too_slow(device_type, figures):
        log.info("rates of the %s hold for this process only: it was busy (%s)", device_type, ", ".join(unconfirmed))
        store.note(figures)
        return
    odd = implausible(device_type, figures)
    if odd:
        log.info("rates of the %s that are far from its others: %s", device_type, ", ".join(odd))
    repeated = f"{device_type} {REPEATED}"
    before = store.current().get(repeated, 0)
    store.add({**figures, repeated: before + 1}, replaces=before > 0)


def _rates_by(figures: Mapping[str, int], name: str, peers: Peers, *, on_gpu: bool = False) -> Rates:
    """Rates of the device of that name."""
    # Relative, so that it carries over to types that were not timed.
    efficiency = {f: figures[f"flops_per_s {f}"] / figures["flops_per_s float32"] for f in FAMILIES}
    if on_gpu:
        # In float32 kernels of some families use tensor cores (TensorFloat-32), and products do not.
        efficiency = {family: min(share, FAMILY_SHARES[family]) for family, share in efficiency.items()}
    return Rates(
        flops_per_s={type_name(t): figures[f"flops_per_s {type_name(t)}"] for t in PRODUCT_TYPES},
        efficiency=efficiency,
        bytes_per_s=figures["bytes_per_s"],
        special_per_s=figures["special_per_s"],
        overhead_ns=figures["overhead_ns"],
        name=name,
        peers=peers,
        on_gpu=on_gpu,
    )


PRODUCT_SHARE = 0.7
"""Part of the FLOP rate that large matrix products reach."""
BANDWIDTH_SHARE = 0.85
"""Part of the memory bandwidth that large copies reach."""
FAMILY_SHARES = {"convolution": 0.8, "convolution_backward": 0.6, "attention": 0.8, "attention_backward": 0.6}
"""FLOP rate of other families of kernels relative to the product's, see `families`; no more is believed of a GPU."""
OVERHEAD_NS = 2_000
"""Least time of one kernel."""


def paper_rates(gpu: Gpu) -> Rates:
    """The rates of `gpu`: those that were measured, or by its data sheet, where float32 products are TensorFloat-32 if
    the user allows it.
    """
    if gpu.figures:
        return _rates_by(gpu.figures, gpu.product, peers_of(gpu), on_gpu=True)
    allows_tf32 = torch_compat.float32_precisions()[0] == "tf32"
    sheet = gpu.flops_per_s
    single = sheet["tf32" if allows_tf32 else "float32"]
    products = {**{name: sheet[name] for name in ("float64", "float16", "bfloat16")}, "float32": single}
    return Rates(
        flops_per_s={name: PRODUCT_SHARE * rate for name, rate in products.items()},
        efficiency=FAMILY_SHARES,
        bytes_per_s=BANDWIDTH_SHARE * gpu.bytes_per_s,
        special_per_s=special_rate(gpu),
        overhead_ns=OVERHEAD_NS,
        name=f"data sheet of {gpu.product}",
        peers=peers_of(gpu),
        on_gpu=True,
    )
