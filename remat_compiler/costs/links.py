"""How fast values are copied off a device and back: measured once by the copies that steps use, then kept."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import torch

from remat_compiler import torch_compat
from remat_compiler.costs.calibration import rounded
from remat_compiler.costs.clock import best_ns, thread_clock
from remat_compiler.costs.store import shared_store
from remat_compiler.devices.gpus import Gpu
from remat_compiler.ir.plan import PAGE_BYTES, Tier
from remat_compiler.ir.problem import CopyTime, Link
from remat_compiler.offload.copies import copy_back, copy_out
from remat_compiler.offload.operators import FETCH, OFFLOAD, OFFLOADED, PREFETCH
from remat_compiler.offload.place import Place
from remat_compiler.offload.store import store_of

_SIZES = tuple(2**exponent for exponent in (16, 18, 20, 22, 24, 26))
"""Sizes of the copies that are timed: from some that stay in caches to some that need memory not yet touched."""
_FIGURES = (
    *("latency_ns", "drag_percent plus 1", "begin_ns"),
    *(f"{direction} {size} ns" for size in _SIZES for direction in ("out", "back")),
)
_BESIDE_BYTES = 64 * 2**20
"""Large enough that the time of starting a copy does not count."""
LINK_SHARE = 0.8
"""Part of a link's bandwidth that copies of pinned memory reach; an assumption, for GPUs that are not there."""
LATENCY_NS = 10_000
"""Time of a copy of next to nothing there."""
BEGIN_NS = 100_000
"""Time for which a processor is busy with a copy there; on an H100, traces had twice that and more."""
_DRAG_STEP, _MOST_DRAG = 25, 200
"""The drag is rounded to multiples of the first, so that calibrations agree, and is at most the second."""
NOMINAL = {Tier.HOST: (5 * 10**9, 5 * 10**9, 10_000), Tier.DISK: (10**9, 10**9, 50_000)}
"""Bandwidths and latency that stand for every machine, to compare plans between machines."""


def links_to(
    place: Place | None, device_types: Collection[str], cost_model: str, directory: Path | None
) -> tuple[Link, ...]:
    """The link between the device that a graph computes on and `place`; none without a place.

    Args:
        place: Where values may be moved to.
        device_types: Types of the graph's devices; values are moved from the GPU if there is one among them.
        cost_model: One of `options.COST_MODELS`.
        directory: Where figures are kept between processes, as for `rates.rates_of`.

    Raises:
        OffloadError: The place cannot be used.
    """
    if place is None:
        return ()
    if cost_model == "nominal":
        return (Link(place.tier, *NOMINAL[place.tier]),)
    device_type = "cuda" if "cuda" in device_types else "cpu"
    gpu = torch_compat.paper_gpu() if device_type == "cuda" else None
    if gpu is not None:
        # A disk's rates stand in no data sheet of a GPU.
        return (paper_link(gpu) if place.tier is Tier.HOST else Link(place.tier, *NOMINAL[place.tier]),)
    store = shared_store("rates", directory, least=1)
    names = [f"{device_type} {place} {figure}" for figure in _FIGURES]
    figures = store.current()
    if any(name not in figures for name in names):
        store.add(dict(zip(names, _measured(place, device_type))))
    return (_link(place.tier, [figures[name] for name in names]),)


def paper_link(gpu: Gpu) -> Link:
    """The link between a GPU that is not there and its host, by its data sheet."""
    rate = int(LINK_SHARE * gpu.link_bytes_per_s) or NOMINAL[Tier.HOST][0]
    return Link(Tier.HOST, rate, rate, LATENCY_NS, begin_ns=BEGIN_NS)


def _link(tier: Tier, figures: Sequence[int]) -> Link:
    """The link that has `_FIGURES`."""
    latency_ns, drag, begin_ns, *times = figures
    curve, out_ns, back_ns = [], latency_ns, latency_ns
    for size, out, back in zip(_SIZES, times[::2], times[1::2]):
        # Another process that was busy may have slowed down a copy of a smaller size more.
        out_ns, back_ns = max(out_ns, out), max(back_ns, back)
        curve.append(CopyTime(size, out_ns, back_ns))
    out_rate, back_rate = (max(_SIZES[-1] * 10**9 // time_ns, 1) for time_ns in (out_ns, back_ns))
    return Link(tier, out_rate, back_rate, latency_ns, drag - 1, tuple(curve), begin_ns)


def _measured(place: Place, device_type: str) -> list[int]:
    """The figures of a link, in the order of `_FIGURES`, each rounded as rates are but for the drag."""
    with torch_compat.outside_tracing(), torch.no_grad():
        smallest = _times_ns(place, device_type, PAGE_BYTES)
        times = [time_ns for size in _SIZES for time_ns in _times_ns(place, device_type, size)]
        # Engines of a GPU copy beside its processors.
        drag = _drag_percent(place) if device_type == "cpu" else 0
        begin_ns = _begin_ns(place, device_type)
    # The store keeps figures of at least 1.
    return [rounded(sum(smallest) / 2), drag + 1, rounded(begin_ns), *map(rounded, times)]


def _begin_ns(place: Place, device_type: str) -> float:
    """What a copy takes of the thread that runs the step, without the time for which that waits."""
    value = torch.zeros(PAGE_BYTES, dtype=torch.uint8, device=device_type)
    # As in a step, for which room is made when it is compiled.
    room = store_of(place, pinned=value.is_cuda).reserve(2 * PAGE_BYTES, 2 * PAGE_BYTES)

    def out_and_back() -> None:
        handle = OFFLOAD(value, str(place))
        OFFLOADED(handle, value)
        FETCH(*PREFETCH(handle, value.shape, [0], value.dtype, value.device))

    begin_ns = best_ns(out_and_back, "cpu", most=30, seconds=0.1, clock=thread_clock()) / 2
    del room
    return begin_ns


def _drag_percent(place: Place) -> int:
    """What products of matrices lose beside a copy out, in percent of the time that the copy takes alone."""
    factor = torch.full((512, 512), 0.5, dtype=torch.float32, device="cpu")
    value = torch.zeros(_BESIDE_BYTES, dtype=torch.uint8, device="cpu")
    slot = store_of(place, pinned=False).take(_BESIDE_BYTES)
    # The first copy pays for pages that were not touched before.
    copy_out(value, slot).wait()
    copy_ns = best_ns(lambda: copy_out(value, slot).wait(), "cpu", most=4, seconds=0.3)
    once_ns = best_ns(lambda: torch.mm(factor, factor), "cpu", most=5, seconds=0.05)
    # Products for twice the time of the copy, which so ends before them.
    count = max(2 * copy_ns // once_ns, 1)

    def products() -> None:
        for _ in range(count):
            torch.mm(factor, factor)

    def beside() -> None:
        copy = copy_out(value, slot)
        products()
        copy.wait()

    beside()
    alone_ns = best_ns(products, "cpu", most=5, seconds=0.3)
    lost_ns = best_ns(beside, "cpu", most=5, seconds=0.3) - alone_ns
    return min(max(round(100 * lost_ns / copy_ns / _DRAG_STEP), 0) * _DRAG_STEP, _MOST_DRAG)


def _times_ns(place: Place, device_type: str, size_bytes: int) -> tuple[int, int]:
    """Nanoseconds of a copy out and of a copy back."""
    value = torch.zeros(size_bytes, dtype=torch.uint8, device=device_type)
    slot = store_of(place, pinned=value.is_cuda).take(size_bytes)

    def out() -> None:
        copy_out(value, slot).wait()

    # The first copy pays for pages that were not touched before.
    out()
    done = copy_out(value, slot)
    done.wait()

    def back() -> None:
        # Into memory that is new each time, as in a step.
        copy_back(slot, torch.empty_like(value), done).wait()

    return (
        best_ns(out, device_type, most=8, seconds=0.1),
        best_ns(back, device_type, most=8, seconds=0.1),
    )
