"""GPUs as compilations on paper need them: data sheets, for a machine that has none of them.

Sources, by column:

- `total_bytes`: the capacity that torch names in out-of-memory errors on that GPU ("total capacity of").  Driver and
  ECC change it by about 0.3 GiB; the least one that was found in public reports stands here.
- `sms`, `l2_bytes`, `bytes_per_s`, `flops_per_s`: NVIDIA's data sheet or architecture white paper, see `source`.
  FLOP/s are those of dense matrix products with sums in float32, of the tensor cores where the type has them.
- `link_bytes_per_s`: the generation of PCI Express that the data sheet names, with 16 lanes;
  of GB200, NVLink-C2C to its Grace CPU.
- `peer_bytes_per_s`: half of the NVLink bandwidth in the data sheet, which counts both directions.
- `limits`, by compute capability: CUDA C++ Programming Guide, "Compute
  Capabilities".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from remat_compiler.errors import UnknownName

_GIB, _MIB, _KIB = 2**30, 2**20, 2**10

CONTEXT_BYTES = 600 * _MIB
"""What a process takes of a GPU before torch allocates anything: the CUDA context and the code of libraries.  Between
0.3 and 0.8 GiB, by driver and by the libraries that are used; a stated constant, not part of any exact figure."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What kernels may take of one multiprocessor.

    Attributes:
        threads: Most threads on it.
        shared_bytes: Its shared memory.
        optin_bytes: Most shared memory of one block, if the kernel asks for it.
    """

    threads: int
    shared_bytes: int
    optin_bytes: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU: its data sheet, or what was read from one that is there.

    Attributes:
        name: Short name, by which users ask for it.
        product: Name that the driver gives it.
        capability: Compute capability, major and minor.
        sms: Streaming multiprocessors.
        total_bytes: Memory that a process sees.
        l2_bytes: Second-level cache.
        bytes_per_s: Memory bandwidth.
        link_bytes_per_s: Bandwidth of the link to the host in one direction; 0 if it is not known.
        flops_per_s: Rate of dense matrix products by name of the type; ``tf32`` is that of float32 where the user
            allows TensorFloat-32.  A type without units of its own runs at the rate of float32.
        source: Where the rates come from.
        of_multiprocessor: What kernels may take, where that was read from the GPU; by the capability otherwise.
        free_bytes: Memory that nobody uses, of a GPU that is there.
        figures: What calibration measured of a GPU that is there, by the names of `costs.calibration.FIGURES`; it takes
            the place of the rates above.
        peer_bytes_per_s: Bandwidth of NVLink to other GPUs of the machine in one direction; 0 where there is none.
    """

    name: str
    product: str
    capability: tuple[int, int]
    sms: int
    total_bytes: int
    l2_bytes: int
    bytes_per_s: float
    link_bytes_per_s: float
    flops_per_s: Mapping[str, float]
    source: str

    of_multiprocessor: Limits | None = None
    free_bytes: int | None = None
    figures: Mapping[str, int] = field(default_factory=dict)
    peer_bytes_per_s: float = 0.0

    @property
    def limits(self) -> Limits:
        """What kernels may take of one multiprocessor."""
        return self.of_multiprocessor or _LIMITS[self.capability]

    @property
    def usable_bytes(self) -> int:
        """What is left of its memory to torch."""
        left = self.total_bytes - CONTEXT_BYTES
        return left if self.free_bytes is None else min(left, self.free_bytes)


_LIMITS = {
    capability: Limits(threads, shared * _KIB, optin * _KIB)
    for capability, threads, shared, optin in (
        ((7, 0), 2048, 96, 96),
        ((7, 5), 1024, 64, 64),
        ((8, 0), 2048, 164, 163),
        ((8, 6), 1536, 100, 99),
        ((8, 9), 1536, 100, 99),
        ((9, 0), 2048, 228, 227),
        ((10, 0), 2048, 228, 227),
        ((12, 0), 1536, 100, 99),
    )
}
"""By compute capability."""


_PCIE = {3: 15.75e9, 4: 31.5e9, 5: 63e9}
"""Bytes per second of 16 lanes in one direction, by generation: GT/s per lane, less the coding of 128 bits in 130."""

_NVLINK_C2C = 450e9
"""Bytes per second between a Grace CPU and its GPUs in one direction: half of the data sheet's 900 GB/s."""


def _tera(**rates: float) -> dict[str, float]:
    """Rates given in units of 10^12."""
    return {name: rate * 1e12 for name, rate in rates.items()}


GPUS: Mapping[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        Gpu(
            name="t4",
            product="Tesla T4",
            capability=(7, 5),
            sms=40,
            total_bytes=int(14.56 * _GIB),
            l2_bytes=4 * _MIB,
            bytes_per_s=320e9,
            link_bytes_per_s=_PCIE[3],
            flops_per_s=_tera(float64=0.25, float32=8.1, tf32=8.1, float16=65, bfloat16=8.1),
            source="NVIDIA T4 data sheet; Turing architecture white paper (2018)",
        ),
        Gpu(
            name="v100",
            product="Tesla V100-SXM2-32GB",
            capability=(7, 0),
            sms=80,
            total_bytes=int(31.73 * _GIB),
            l2_bytes=6 * _MIB,
            bytes_per_s=900e9,
            link_bytes_per_s=_PCIE[3],
            flops_per_s=_tera(float64=7.8, float32=15.7, tf32=15.7, float16=125, bfloat16=15.7),
            source="NVIDIA V100 data sheet (2020)",
            peer_bytes_per_s=150e9,
        ),
        Gpu(
            name="rtx2080ti",
            product="NVIDIA GeForce RTX 2080 Ti",
            capability=(7, 5),
            sms=68,
            total_bytes=int(10.75 * _GIB),
            l2_bytes=11 * _MIB // 2,
            bytes_per_s=616e9,
            link_bytes_per_s=_PCIE[3],
            flops_per_s=_tera(float64=0.42, float32=13.4, tf32=13.4, float16=53.8, bfloat16=13.4),
            source="Turing architecture white paper (2018)",
        ),
        Gpu(
            name="rtx3090",
            product="NVIDIA GeForce RTX 3090",
            capability=(8, 6),
            sms=82,
            total_bytes=int(23.68 * _GIB),
            l2_bytes=6 * _MIB,
            bytes_per_s=936e9,
            link_bytes_per_s=_PCIE[4],
            flops_per_s=_tera(float64=0.556, float32=35.6, tf32=35.6, float16=71, bfloat16=71),
            source="Ampere GA102 architecture white paper (2021)",
        ),
        Gpu(
            name="rtx4090",
            product="NVIDIA GeForce RTX 4090",
            capability=(8, 9),
            sms=128,
            total_bytes=int(23.51 * _GIB),
            l2_bytes=72 * _MIB,
            bytes_per_s=1008e9,
            link_bytes_per_s=_PCIE[4],
            flops_per_s=_tera(float64=1.29, float32=82.6, tf32=82.6, float16=165.2, bfloat16=165.2),
            source="Ada architecture white paper (2023)",
        ),
        Gpu(
            name="a100-40",
            product="NVIDIA A100-SXM4-40GB",
            capability=(8, 0),
            sms=108,
            total_bytes=int(39.39 * _GIB),
            l2_bytes=40 * _MIB,
            bytes_per_s=1555e9,
            link_bytes_per_s=_PCIE[4],
            flops_per_s=_tera(float64=19.5, float32=19.5, tf32=156, float16=312, bfloat16=312),
            source="NVIDIA A100 data sheet (2021)",
            peer_bytes_per_s=300e9,
        ),
        Gpu(
            name="a100",
            product="NVIDIA A100-SXM4-80GB",
            capability=(8, 0),
            sms=108,
            total_bytes=int(79.14 * _GIB),
            l2_bytes=40 * _MIB,
            bytes_per_s=2039e9,
            link_bytes_per_s=_PCIE[4],
            flops_per_s=_tera(float64=19.5, float32=19.5, tf32=156, float16=312, bfloat16=312),
            source="NVIDIA A100 data sheet (2021)",
            peer_bytes_per_s=300e9,
        ),
        Gpu(
            name="l40s",
            product="NVIDIA L40S",
            capability=(8, 9),
            sms=142,
            total_bytes=int(44.39 * _GIB),
            l2_bytes=96 * _MIB,
            bytes_per_s=864e9,
            link_bytes_per_s=_PCIE[4],
            flops_per_s=_tera(float64=1.43, float32=91.6, tf32=183, float16=362, bfloat16=362),
            source="NVIDIA L40S data sheet (2023)",
        ),
        Gpu(
            name="h100",
            product="NVIDIA H100 80GB HBM3",
            capability=(9, 0),
            sms=132,
            total_bytes=int(79.1 * _GIB),
            l2_bytes=50 * _MIB,
            bytes_per_s=3350e9,
            link_bytes_per_s=_PCIE[5],
            flops_per_s=_tera(float64=66.9, float32=66.9, tf32=494.7, float16=989.4, bfloat16=989.4),
            source="H100 architecture white paper (2022), SXM5",
            peer_bytes_per_s=450e9,
        ),
        Gpu(
            name="h200",
            product="NVIDIA H200",
            capability=(9, 0),
            sms=132,
            total_bytes=int(139.71 * _GIB),
            l2_bytes=50 * _MIB,
            bytes_per_s=4800e9,
            link_bytes_per_s=_PCIE[5],
            flops_per_s=_tera(float64=66.9, float32=66.9, tf32=494.7, float16=989.4, bfloat16=989.4),
            source="NVIDIA H200 data sheet (2024), SXM",
            peer_bytes_per_s=450e9,
        ),
        Gpu(
            name="b200",
            product="NVIDIA B200",
            capability=(10, 0),
            sms=148,
            total_bytes=int(178.35 * _GIB),
            l2_bytes=126 * _MIB,
            bytes_per_s=8000e9,
            link_bytes_per_s=_PCIE[5],
            flops_per_s=_tera(float64=40, float32=80, tf32=1100, float16=2250, bfloat16=2250),
            source="NVIDIA HGX B200 data sheet (2025), one GPU of eight",
            peer_bytes_per_s=900e9,
        ),
        Gpu(
            name="gb200",
            product="NVIDIA GB200",
            capability=(10, 0),
            sms=152,
            total_bytes=int(184.31 * _GIB),
            l2_bytes=126 * _MIB,
            bytes_per_s=8000e9,
            link_bytes_per_s=_NVLINK_C2C,
            flops_per_s=_tera(float64=40, float32=80, tf32=1250, float16=2500, bfloat16=2500),
            source="NVIDIA GB200 NVL72 data sheet (2025), one GPU of 72",
            peer_bytes_per_s=900e9,
        ),
        Gpu(
            name="rtx5090",
            product="NVIDIA GeForce RTX 5090",
            capability=(12, 0),
            sms=170,
            total_bytes=int(31.36 * _GIB),
            l2_bytes=96 * _MIB,
            bytes_per_s=1792e9,
            link_bytes_per_s=_PCIE[5],
            flops_per_s=_tera(float64=1.64, float32=104.8, tf32=104.8, float16=209.5, bfloat16=209.5),
            source="RTX Blackwell architecture white paper (2025)",
        ),
        Gpu(
            name="rtxpro6000",
            product="NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
            capability=(12, 0),
            sms=188,
            total_bytes=int(94.97 * _GIB),
            l2_bytes=128 * _MIB,
            bytes_per_s=1792e9,
            link_bytes_per_s=_PCIE[5],
            flops_per_s=_tera(float64=1.97, float32=126, tf32=251.9, float16=503.8, bfloat16=503.8),
            source="RTX PRO Blackwell architecture white paper (2025)",
        ),
    )
}
"""Each GPU by its short name."""


def gpu_of_product(product: str) -> Gpu | None:
    """The GPU that its driver names so; `None` if the table has none."""
    return next((gpu for gpu in GPUS.values() if gpu.product == product), None)


def gpu_like(product: str, capability: tuple[int, int], sms: int) -> Gpu:
    """The GPU that its driver names so, or one that stands for it: of its generation or the last one before it, with
    rates for as many multiprocessors.
    """
    known = gpu_of_product(product)
    if known is not None:
        return known
    older = [gpu for gpu in GPUS.values() if gpu.capability <= capability]
    # The oldest one stands for those before it.
    near = max(older or [GPUS["v100"]], key=lambda gpu: gpu.capability)
    part = sms / near.sms
    return replace(
        near,
        bytes_per_s=part * near.bytes_per_s,
        flops_per_s={name: part * rate for name, rate in near.flops_per_s.items()},
        peer_bytes_per_s=0.0,
    )


def gpu_named(name: str) -> Gpu:
    """The GPU of that name, its short one or its driver's; case, blanks, hyphens and a maker's prefix do not matter.

    Raises:
        UnknownName: The table has none of that name.
    """
    known = {_plain(key): gpu for short, gpu in GPUS.items() for key in (gpu.product, short)}
    found = known.get(_plain(name))
    if found is None:
        raise UnknownName("device", name, GPUS)
    return found


def _plain(name: str) -> str:
    letters = "".join(character for character in name.lower() if character.isalnum())
    for prefix in _PREFIXES:
        letters = letters.removeprefix(prefix)
    return letters


_PREFIXES = ("nvidia", "geforce", "tesla", "rtx")
"""What stands in front of names, from the outside."""
