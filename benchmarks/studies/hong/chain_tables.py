"""Hong et al.'s Table 2 beside what our Algorithms 3, 5 and 6 give, their solve times, and growth to 1,000,000.

    python -m studies.hong.chain_tables [--json PATH] [--plot PATH] [--longest LAYERS]

Needs neither torch nor a device: networks are lists of layer sizes.  Two models predict the training peak:

Eq. 9       the paper's: checkpoints so far, the segment, one buffer of the largest output gradient
traced      what their figures show: at the end of each backward stage the gradient that was just made, and
            the int64 indices of the max-pools in the segment (two floats an element), which Eq. 9 leaves
            out; a Flatten is a view and holds nothing

Both add what the paper leaves unsaid and its figures contain: weights, gradients and SGD's momentum buffers,
and the workspaces of cuBLAS.  Where our counting of a layer decides a set, both countings are shown.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from random import Random
from statistics import median

from remat_passes.chains.hong import (
    Chain,
    Selection,
    dynamic_objective,
    select_linear,
    select_quadratic,
    select_static,
)

MIB = 1 << 20
FLOAT = 4
STATE_COPIES = 3
"""Weights, gradients, and the momentum buffers of SGD."""
CUBLAS_WORKSPACE_MIB = 2 * 8.125
"""PyTorch's default cuBLAS workspace (:4096:2:16:8), for the forward's thread and for autograd's."""


@dataclass(frozen=True)
class Network:
    """A chain of layers, in floats a sample.

    Attributes:
        name: As in the paper.
        outputs: Output of every layer; the first is the input.
        counted: The same as the paper's Algorithm 6 must have counted, see `counting`.
        counting: In what `counted` differs, and why.
        pools: Max-pool layers, which hold an index for each element of their output.
        views: Layers whose output is a view.
        parameters: Number of trained values.
    """

    name: str
    outputs: tuple[int, ...]
    counted: tuple[int, ...]
    counting: str
    pools: tuple[int, ...]
    views: tuple[int, ...]
    parameters: int

    @property
    def fixed_mib(self) -> float:
        """What does not depend on the batch."""
        return STATE_COPIES * FLOAT * self.parameters / MIB + CUBLAS_WORKSPACE_MIB

    def mib(self, floats: int, batch: int) -> float:
        """Peak in MiB of a step that holds `floats` a sample."""
        return self.fixed_mib + FLOAT * floats * batch / MIB


@dataclass(frozen=True)
class Row:
    """One figure of Table 2 with ours.

    Attributes:
        model: Network and batch.
        method: Column of the table.
        paper_set: The paper's checkpoints (empty: everything saved).
        our_set: Ours, from the outputs of all layers.
        counted_set: Ours, from the paper's counting.
        paper_mib: The paper's measured figure.
        equation_mib: Eq. 9's prediction for `our_set`; `None` without checkpoints.
        traced_mib: The traced model's prediction for `our_set`.
    """

    model: str
    method: str
    paper_set: tuple[int, ...]
    our_set: tuple[int, ...]
    counted_set: tuple[int, ...]
    paper_mib: int
    equation_mib: float | None
    traced_mib: float


def vgg19() -> Network:
    """16 convolutions, 5 max-pools, 3 fully connected layers at 224 x 224."""
    outputs, pools = [3 * 224 * 224], []
    for convolutions, channels, side in ((2, 64, 224), (2, 128, 112), (4, 256, 56), (4, 512, 28), (4, 512, 14)):
        outputs += [channels * side * side] * convolutions
        pools.append(len(outputs))
        outputs.append(channels * (side // 2) ** 2)
    pooled = outputs[-1]
    outputs += [4096, 4096, 1000]
    counted = list(outputs)
    counted[22] += pooled
    note = "AdaptiveAvgPool is no layer in the paper, so its output is counted with layer 22, which it feeds"
    return Network("VGG-19", tuple(outputs), tuple(counted), note, tuple(pools), (), 143_667_240)


def alexnet() -> Network:
    """5 convolutions and 3 standalone max-pools (1-8), AdaptiveAvgPool, Flatten, Dropout (9-11), 3 fully connected
    layers (12, 14, 15) with a Dropout (13) between.
    """
    convolutions = (64 * 55**2, 64 * 27**2, 192 * 27**2, 192 * 13**2, 384 * 13**2, 256 * 13**2, 256 * 13**2, 256 * 6**2)
    outputs = (3 * 224 * 224, *convolutions, 9216, 9216, 9216, 4096, 4096, 4096, 1000)
    counted = (*outputs[:9], 0, 0, *outputs[11:])
    note = "AdaptiveAvgPool (6x6 to 6x6) and Flatten (a view), layers 9 and 10, are counted as no bytes"
    return Network("AlexNet", outputs, counted, note, (2, 4, 8), (10,), 61_100_840)


NETWORKS = {network.name: network for network in (vgg19(), alexnet())}

PAPER_SETS: dict[str, dict[str, tuple[int, ...]]] = {
    "VGG-19": {
        "Algorithm 6": (2, 4, 6, 9, 11, 14, 16, 19, 21, 23, 24),
        "Algorithm 3": (3, 6, 24),
        "sqrt(n)": (5, 10, 15, 20, 24),
        "PyTorch": (),
    },
    "AlexNet": {
        "Algorithm 6": (2, 4, 6, 8, 12, 14, 15),
        "Algorithm 3": (2, 4, 12, 15),
        "sqrt(n)": (4, 8, 12, 15),
        "PyTorch": (),
    },
}
"""Section 5.5; the set of the ACG solver is that of Algorithm 3."""

PAPER_MIB: dict[tuple[str, int], tuple[int | None, ...]] = {
    ("VGG-19", 128): (6444, 6835, 8404, 11262),
    ("VGG-19", 256): (11220, 12004, 15139, 20850),
    ("VGG-19", 320): (13609, 14592, 18511, None),
    ("VGG-19", 384): (15997, 17177, None, None),
    ("VGG-19", 400): (16594, 17824, None, None),
    ("AlexNet", 128): (1002, 1003, 1106, 1174),
    ("AlexNet", 4096): (9866, 9866, 13182, 15275),
}
"""Table 2 in the order of `PAPER_SETS`; `None` is out of memory on 24 GiB."""


def checkpoints(sizes: Sequence[int], method: str) -> tuple[int, ...]:
    """Our checkpoints for a column of the table."""
    chain = Chain.of_sizes(tuple(sizes))
    if method == "Algorithm 6":
        return select_linear(chain).checkpoints
    if method == "Algorithm 3":
        return select_static(chain).checkpoints
    if method == "sqrt(n)":
        step = round(sqrt(chain.last))
        return tuple(sorted({*range(step, chain.last, step), chain.last}))
    return ()


def traced_peak(network: Network, chosen: Sequence[int]) -> int:
    """Floats a sample held at the worst end of a backward stage, see the module docstring."""
    sizes = [0 if i in network.views else size for i, size in enumerate(network.outputs)]
    pools = network.pools

    def segment(start: int, stop: int) -> int:
        """Outputs of layers start+1..stop, and the pool indices of those before `stop`."""
        return sum(sizes[start + 1 : stop + 1]) + sum(2 * sizes[k] for k in pools if start < k < stop)

    if not chosen:
        return sizes[0] + segment(0, len(sizes))  # the end of the forward; the backward only frees
    peak, held, before = 0, sizes[0], 0
    for checkpoint in chosen:
        stages = (held + segment(before, i) + sizes[i - 1] for i in range(before + 1, checkpoint + 1))
        peak = max(peak, *stages)
        held, before = held + sizes[checkpoint], checkpoint
    return peak


def table() -> list[Row]:
    """Every figure of Table 2 with ours."""
    rows = []
    for (name, batch), figures in PAPER_MIB.items():
        network = NETWORKS[name]
        for (method, paper_set), figure in zip(PAPER_SETS[name].items(), figures):
            if figure is None:
                continue
            ours = checkpoints(network.outputs, method)
            equation = dynamic_objective(Chain.of_sizes(network.outputs), ours)
            rows.append(
                Row(
                    model=f"{name}, b={batch}",
                    method=method,
                    paper_set=paper_set,
                    our_set=ours,
                    counted_set=checkpoints(network.counted, method),
                    paper_mib=figure,
                    equation_mib=network.mib(equation, batch) if ours else None,
                    traced_mib=network.mib(traced_peak(network, ours), batch),
                )
            )
    return rows


def solve_ms(select: Callable[[Chain], Selection], chain: Chain, rounds: int = 30) -> float:
    """Median milliseconds of one call."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        select(chain)
        times.append(time.perf_counter() - start)
    return 1e3 * median(times)


ALGORITHMS: dict[str, Callable[[Chain], Selection]] = {
    "Algorithm 3": select_static,
    "Algorithm 5": select_quadratic,
    "Algorithm 6": select_linear,
}


def scaling(longest: int) -> dict[int, float]:
    """Seconds of Algorithm 6 by length of a random chain."""
    rng = Random(0)
    seconds, length = {}, 1000
    while length <= longest:
        chain = Chain.of_sizes([rng.randint(1, 1 << 20) for _ in range(length)])
        seconds[length] = solve_ms(select_linear, chain, rounds=3 if length < 10**6 else 1) / 1e3
        length *= 10
    return seconds


def error(figure: float | None, paper: int) -> str:
    """Signed deviation from the paper, for people."""
    return "-" if figure is None else f"{figure:8,.0f} {100 * (figure / paper - 1):+5.1f} %"


def print_table(rows: Sequence[Row]) -> None:
    """Peaks, then sets."""
    print("Training peak in MiB (paper: measured on an RTX 3090; ours: predicted)\n")
    print(f"{'model':<17} {'method':<12} {'paper':>7}   {'Eq. 9':>16}   {'traced':>16}")
    for row in rows:
        equation, traced = error(row.equation_mib, row.paper_mib), error(row.traced_mib, row.paper_mib)
        print(f"{row.model:<17} {row.method:<12} {row.paper_mib:>7,}   {equation:>16}   {traced:>16}")
    for name, network in NETWORKS.items():
        print(f"\n{name}: checkpoints; fixed part {network.fixed_mib:,.1f} MiB")
        for row in rows:
            if row.model.startswith(name) and row.model.endswith("b=128") and row.paper_set:
                print(f"  {row.method:<12} paper {row.paper_set}{verdict(row)}")
        print(f"  paper's counting: {network.counting}")


def verdict(row: Row) -> str:
    """How our set stands to the paper's."""
    if row.our_set == row.paper_set:
        other = "" if row.counted_set == row.paper_set else f"; in the paper's counting {row.counted_set}"
        return f", ours is the same{other}"
    counted = "the paper's" if row.counted_set == row.paper_set else str(row.counted_set)
    return f"\n{'':14} ours  {row.our_set}: the same peak; in the paper's counting {counted}"


def plot(rows: Sequence[Row], seconds: dict[int, float], path: Path) -> None:
    """Predicted against measured peaks, and the growth of Algorithm 6."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5))
    for method in PAPER_SETS["VGG-19"]:
        chosen = [row for row in rows if row.method == method]
        left.scatter([r.paper_mib for r in chosen], [r.traced_mib for r in chosen], label=method)
    top = max(row.paper_mib for row in rows)
    left.plot([0, top], [0, top], color="grey", linewidth=0.8)
    left.set(xlabel="measured in the paper, MiB", ylabel="predicted (traced), MiB", title="Training peak")
    left.legend()
    right.loglog(list(seconds), list(seconds.values()), marker="o")
    right.set(xlabel="layers", ylabel="seconds", title="Algorithm 6")
    right.grid(which="both", linewidth=0.3)
    figure.tight_layout()
    figure.savefig(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; write what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--plot", type=Path, help="draw them (needs matplotlib)")
    parser.add_argument("--longest", type=int, default=1_000_000, help="longest chain for Algorithm 6")
    options = parser.parse_args(arguments)

    rows = table()
    print_table(rows)
    vgg = Chain.of_sizes(NETWORKS["VGG-19"].outputs)
    times = {name: solve_ms(select, vgg) for name, select in ALGORITHMS.items()}
    print("\nSolve time for VGG-19 in ms (paper: Algorithm 3 20, Algorithm 6 1.1)")
    print("  " + ", ".join(f"{name} {ms:.3f}" for name, ms in times.items()))
    print("\nAlgorithm 6 on random chains")
    seconds = scaling(options.longest)
    for length, taken in seconds.items():
        print(f"  {length:>9,} layers  {taken:8.4f} s  {1e6 * taken / length:6.2f} us a layer")
    if options.json:
        record = {
            "rows": [asdict(row) for row in rows],
            "solve_ms": times,
            "scaling_seconds": seconds,
            "python": sys.version.split()[0],
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if options.plot:
        plot(rows, seconds, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
