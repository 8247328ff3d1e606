"""Liger's public table: forward and backward of single layers as they are without it, on an A100 or an H100."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from studies.on_paper.gpu_report_layers import Divergence, Entropy, RmsNorm, Rope
from studies.on_paper.gpu_report_parts import Gated, Head, Norm
from studies.on_paper.gpu_report_steps import MIB, Report

_SOURCE = "github.com/linkedin/Liger-Kernel benchmark/data/all_benchmark_data.csv"
_Maker = Callable[[int], Callable[[], tuple[Any, ...]]]
_LAYERS: Mapping[str, tuple[str, int, _Maker, Mapping[int, float]]] = {
    "swiglu 4x": ("a100", 2, lambda n: Gated(4 * n), {1024: 1294.25, 2048: 1992.25, 4096: 3452.25, 8192: 6372.25}),
    "geglu 8x": (
        *("a100", 2, lambda n: Gated(8 * n, gelu=True)),
        {1024: 1992.25, 2048: 3452.25, 4096: 6372.25, 8192: 12212.25},
    ),
    "head ": ("a100", 2, Head, {4096: 6092.28, 8192: 9162.31, 16384: 15302.38, 32768: 27582.5}),
    "norm ": ("a100", 0, Norm, {1024: 80.06, 2048: 160.09, 4096: 320.16, 8192: 640.28, 16384: 1280.53}),
    "rms norm ": (
        *("a100", 0, RmsNorm),
        {1024: 80.02, 2048: 160.03, 4096: 320.05, 8192: 640.10, 16384: 1280.20, 32768: 2560.38},
    ),
    "cross entropy ": (
        *("a100", 0, Entropy),
        {4096: 1280.13, 8192: 2560.13, 16384: 5120.13, 32768: 10240.13, 65536: 20480.13, 131072: 40960.13},
    ),
    "kl divergence ": (
        *("h100", 0, lambda n: Divergence(n, 16384, symmetric=False)),
        {4096: 1792.0, 8192: 3584.0, 16384: 7168.0, 32768: 14336.0, 65536: 28672.0, 131072: 57344.0},
    ),
    "js divergence ": (
        *("h100", 0, lambda n: Divergence(n, 8192, symmetric=True)),
        {4096: 1664.0, 8192: 3328.0, 16384: 6656.0, 32768: 13312.0, 65536: 26624.0, 131072: 53248.0},
    ),
    "rope by width ": ("a100", 1, lambda n: Rope(n, 2048), {512: 22.27, 2048: 64.64, 8192: 234.14}),
    "rope by tokens ": (
        *("a100", 1, lambda n: Rope(8192, n)),
        {1024: 121.13, 4096: 460.16, 8192: 912.19, 16384: 1816.25},
    ),
}
"""By name: the GPU, workspaces of cuBLAS, what makes the step of a size, and MiB allocated by size.

The angles of positions are a product, which nothing goes back through.
"""

LIGER = tuple(
    Report(f"liger {name}{size}", _SOURCE, gpu, mib * MIB, "allocated", make(size), handles=handles)
    for name, (gpu, handles, make, points) in _LAYERS.items()
    for size, mib in points.items()
)
