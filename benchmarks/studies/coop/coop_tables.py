"""Coop's tables: added time, smallest memory, search and fragmentation of five ways on eight networks, on an A100.

    python -m studies.coop.coop_tables [--models ResNet-50 ...] [--json OUT.json] [--text OUT.txt] [--plot OUT.png]
    python -m studies.coop.coop_tables --read results/coop_tables.json [--text OUT.txt] [--plot OUT.png]

A ratio is of all that the device holds without recomputation: parameters, the state of their optimizer, inputs, and the
step's peak.  What is left for the step is the size of the pool of `coop`, `dte` and `dtr` (`dtr_pool`): the cheapest of
their traces that fits its pool counts.  `auto` and `selective`, which know no addresses, fit by the simulator's peak.
`selective` is PyTorch's activation_memory_budget (`knapsack`): of the planners here the nearest to the selective
recomputation of Megatron-LM, which the paper compares with on Transformers.  Costs are by the data sheet's rates, an
operator being a node of the joint graph, as in eager PyTorch.

A search is what a request costs that finds no free chunk: Coop scores every tensor in the pool once, DTR and DTE once
for each tensor that they evict.  The tensors scored are what it takes, on any machine.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import mean, median

from instruments.fake_capture import captured_on_fakes
from instruments.verified import check
from remat_compiler.costs.rates import paper_rates
from remat_compiler.devices.gpus import GPUS
from remat_compiler.ir.graph import StorageKind
from remat_compiler.ir.planner import Planner
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.timeline import simulate
from remat_passes.eviction.traces import PoolTrace
from remat_passes.planning.auto import Auto
from remat_passes.planning.coop import Coop
from remat_passes.planning.dte import Dte
from remat_passes.planning.dtr_pool import DtrPool
from remat_passes.planning.knapsack import Knapsack
from remat_passes.planning.save_all import SaveAll
from studies.coop.coop_arena import arena_bytes
from studies.coop.coop_models import MODELS, CoopModel

GPU = "a100"
RATIOS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
COARSE, FINE = 0.05, 0.01
"""Steps in which the smallest ratio of a planner is looked for."""
ROUNDS = 5
"""Runs of which the fastest counts, for planners that take milliseconds; in CPU seconds, as others use the machine."""
WITHOUT = {
    "coop": Coop(),
    "no window": Coop(window=False),
    "no partition": Coop(partition=False),
    "nothing in place": Coop(in_place=False),
    "kept not first": Coop(kept_first=False),
    "none of them": Coop(window=False, partition=False, in_place=False, kept_first=False),
}
"""What is left of Coop without each of its parts."""
ABLATED_AT = 0.5
PoolPlanner = Coop | Dte | DtrPool
POOLED: dict[str, PoolPlanner] = {"coop": Coop(), "dte": Dte(), "dtr": DtrPool()}
OTHERS: dict[str, Planner] = {"selective": Knapsack(), "auto": Auto()}


@dataclass(frozen=True, slots=True)
class Row:
    """One way on one network at one ratio.

    Attributes:
        model: Name of the network.
        planner: Name of the way.
        ratio: Memory over that of the step without recomputation; of `smallest` rows what was found.
        fits: Whether there is a plan.
        added_percent: Added time in percent of the step.
        seconds: CPU seconds of planning, of all traces that the planner tries.
        scored: Tensors scored in one search, on the mean.
        fragmentation: Mean percent of the pool that is free when room had to be made, of the trace that counts.
        arena_percent: For ways that know no addresses, bytes that an arena needs beyond the largest live bytes.
    """

    model: str
    planner: str
    ratio: float
    fits: bool
    added_percent: float = 0.0
    seconds: float = 0.0
    scored: float = 0.0
    fragmentation: float = 0.0
    arena_percent: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """A network's step with what lives beside it.

    Attributes:
        model: The network.
        problem: The step.
        peak_bytes: Its peak without recomputation.
        beside_bytes: Parameters, their optimizer's state, and inputs.
    """

    model: CoopModel
    problem: RematProblem
    peak_bytes: int
    beside_bytes: int

    def at(self, ratio: float) -> RematProblem:
        """The problem with `ratio` of the memory."""
        budget = int(ratio * (self.peak_bytes + self.beside_bytes)) - self.beside_bytes
        return replace(self.problem, budget_bytes=max(budget, 0))

    def ratio_of(self, peak_bytes: int) -> float:
        """Memory with that peak of the step, over that without recomputation."""
        return (peak_bytes + self.beside_bytes) / (self.peak_bytes + self.beside_bytes)

    def percent(self, added_ns: int) -> float:
        """Added time in percent of the step."""
        return 100 * added_ns / self.problem.costs.step_ns


def step_of(model: CoopModel) -> Step:
    """The network's step, captured without its memory."""
    problem = captured_on_fakes(model.name, model.build, {GPU: paper_rates(GPUS[GPU])}).problems[GPU]
    sizes = dict.fromkeys(StorageKind, 0)
    for storage in problem.graph.storages:
        sizes[storage.kind] += storage.size_bytes
    beside = sizes[StorageKind.PARAMETER] * (1 + model.states) + sizes[StorageKind.INPUT]
    return Step(model, problem, SaveAll().plan(problem).peak_bytes, beside)


def timed(planner: PoolPlanner, problem: RematProblem) -> tuple[list[PoolTrace], float]:
    """The traces, and the seconds of the fastest run."""
    best, found = float("inf"), []
    for _ in range(ROUNDS):
        began = time.process_time()
        found = planner.traces(problem)
        best = min(best, time.process_time() - began)
        # Long runs are measured well enough once.
        if best > 1:
            break
    return found, best


def cheapest(problem: RematProblem, traces: Sequence[PoolTrace]) -> tuple[PoolTrace, int] | None:
    """Of the traces that fit their pool the one that adds least, and the nanoseconds that it adds."""
    added = [(simulate(problem.graph, problem.costs, trace.plan).added_ns, k) for k, trace in enumerate(traces)]
    fitting = [(ns, k) for ns, k in added if traces[k].fits]
    if not fitting:
        return None
    ns, k = min(fitting)
    return traces[k], ns


def pooled_row(step: Step, name: str, planner: PoolPlanner, ratio: float) -> Row:
    """A way that runs in a pool."""
    problem = step.at(ratio)
    traces, seconds = timed(planner, problem)
    searches, scored = (sum(getattr(trace, of) for trace in traces) for of in ("searches", "scored"))
    best = cheapest(problem, traces)
    row = Row(step.model.name, name, ratio, best is not None, 0.0, seconds, scored / max(searches, 1))
    if best is None:
        return row
    return replace(row, added_percent=step.percent(best[1]), fragmentation=100 * best[0].fragmentation)


def other_row(step: Step, name: str, planner: Planner, ratio: float) -> Row:
    """A way that knows no addresses."""
    problem = step.at(ratio)
    began = time.process_time()
    result = planner.plan(problem)
    seconds = time.process_time() - began
    check(problem, result)
    assert result.plan is not None
    fits = result.peak_bytes <= problem.budget_bytes
    row = Row(step.model.name, name, ratio, fits, step.percent(result.added_ns) if fits else 0.0, seconds)
    if not fits:
        return row
    return replace(row, arena_percent=100 * (arena_bytes(problem, result.plan) / result.peak_bytes - 1))


def smallest_ratio(fits: Callable[[float], bool]) -> float:
    """The smallest ratio that fits: down in coarse steps to the second that does not, then in fine ones."""

    def down(begin: float, by: float) -> float:
        last, missed, ratio = begin, 0, begin - by
        while ratio > 0 and missed < 2:
            if fits(ratio):
                last, missed = ratio, 0
            else:
                missed += 1
            ratio -= by
        return last

    return round(down(down(1.0, COARSE), FINE), 2)


def smallest_rows(step: Step) -> list[Row]:
    """The smallest memory of each way."""
    rows = []
    for name, planner in POOLED.items():

        def fits(ratio: float, planner: PoolPlanner = planner) -> bool:
            return any(trace.fits for trace in planner.traces(step.at(ratio)))

        rows.append(Row(step.model.name, name, smallest_ratio(fits), True))
    least = {
        "selective": Knapsack().plan(step.at(0.0)).peak_bytes,
        "auto": Auto().smallest_peak(step.problem).peak_bytes,
    }
    return rows + [Row(step.model.name, name, step.ratio_of(peak), True) for name, peak in least.items()]


def rows_of(step: Step, ratios: Sequence[float]) -> list[Row]:
    """All ways at all ratios."""
    rows = []
    for planner in POOLED.values():
        # Loads the compiled loops, which no timing below is to include.
        planner.traces(step.at(1.0))
    for name, planner in POOLED.items():
        rows += [pooled_row(step, name, planner, ratio) for ratio in ratios]
    return rows + [other_row(step, name, planner, ratio) for name, planner in OTHERS.items() for ratio in ratios]


def ablation_rows(step: Step) -> list[Row]:
    """Coop without each of its parts."""
    return [pooled_row(step, name, planner, ABLATED_AT) for name, planner in WITHOUT.items()]


def table(title: str, columns: Sequence[str], lines: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """A table in Markdown."""
    head = [f"| {title} | {' | '.join(columns)} |", "|---" + "|--:" * len(columns) + "|"]
    return [*head, *(f"| {name} | {' | '.join(cells)} |" for name, cells in lines), ""]


def tables(rows: Sequence[Row], smallest: Sequence[Row], ablated: Sequence[Row]) -> str:
    """Everything as Markdown."""
    of = {(row.model, row.ratio, row.planner): row for row in rows}
    models = list(dict.fromkeys(row.model for row in rows))
    ratios = list(dict.fromkeys(row.ratio for row in rows))
    ways, heads = [*POOLED, *OTHERS], [f"{ratio:.0%}" for ratio in ratios]
    text: list[str] = []

    def each(title: str, planners: Sequence[str], cell: Callable[[Row], str]) -> None:
        lines = [
            (f"{m}, `{p}`", [cell(of[m, r, p]) if of[m, r, p].fits else "–" for r in ratios])
            for m in models
            for p in planners
        ]
        text.extend(table(title, heads, lines))

    each("added time, %", ways, lambda row: f"{row.added_percent:.1f}")
    each("fragmentation, %", list(POOLED), lambda row: f"{row.fragmentation:.1f}")
    each("beyond live bytes in an arena, %", list(OTHERS), lambda row: f"{row.arena_percent:.1f}")
    each("tensors scored in a search", list(POOLED), lambda row: f"{row.scored:.0f}")
    each("CPU s of planning", ways, lambda row: f"{row.seconds:.2f}")
    least = {(row.model, row.planner): row.ratio for row in smallest}
    lines = [(m, [f"{100 * least[m, p]:.1f}" for p in ways]) for m in models]
    text += table("smallest memory, %", [f"`{p}`" for p in ways], lines)
    by = {(row.model, row.planner): row for row in ablated}
    cells = [
        (m, [f"{by[m, p].added_percent:.1f} ({by[m, p].fragmentation:.1f})" if by[m, p].fits else "–" for p in WITHOUT])
        for m in models
    ]
    text += table(f"added time (fragmentation) at {ABLATED_AT:.0%}, %", list(WITHOUT), cells)
    return "\n".join([*text, *misses(rows, least)])


def beside(one: Row, other: Row) -> str:
    """Both added times, where they were."""
    times = [f"{row.added_percent:.1f} %" if row.fits else "no plan" for row in (one, other)]
    return f"{one.model} at {one.ratio:.0%} ({times[0]} against {times[1]})"


def misses(rows: Sequence[Row], least: dict[tuple[str, str], float]) -> list[str]:
    """Where the paper's claims, or this project's, do not hold."""
    of = {(row.model, row.ratio, row.planner): row for row in rows}
    coop = [row for row in rows if row.planner == "coop" and row.fits]
    lines = []
    for name in POOLED:
        rates = [row.fragmentation for row in rows if row.planner == name and row.fits]
        lines.append(f"mean fragmentation of {name}: {mean(rates or [0.0]):.1f} %")
    wide = [f"{r.model} at {r.ratio:.0%}: {r.fragmentation:.1f} %" for r in coop if r.fragmentation >= 5]
    lines.append(f"fragmentation of coop at 5 % or above: {', '.join(wide) or 'nowhere'}")
    for other in ("dte", "dtr"):
        pairs = [(row, of[row.model, row.ratio, other]) for row in rows if row.planner == "coop"]
        behind = [beside(a, b) for a, b in pairs if b.fits and not (a.fits and a.added_percent <= b.added_percent)]
        lines.append(f"coop behind {other} in added time: {', '.join(behind) or 'nowhere'}")
        faster = [b.scored / a.scored for a, b in pairs if a.fits and a.scored]
        much = f"10 times or more in {sum(f >= 10 for f in faster)} of {len(faster)}"
        span = f"median {median(faster):.1f} times, {min(faster):.1f} to {max(faster):.1f}" if faster else "none"
        lines.append(f"tensors scored in a search of {other} over coop's: {span}; {much}")
    pairs = [(of[row.model, row.ratio, "auto"], row) for row in coop]
    lost = [beside(a, b) for a, b in pairs if not (a.fits and a.added_percent <= b.added_percent)]
    lines.append(f"auto behind coop in added time: {', '.join(lost) or 'nowhere'}")
    for other in ("dte", "dtr"):
        larger = [m for (m, p), ratio in least.items() if p == "coop" and least[m, other] < ratio]
        lines.append(f"coop behind {other} in smallest memory: {', '.join(larger) or 'nowhere'}")
    larger = [m for (m, p), ratio in least.items() if p == "coop" and least[m, "auto"] > ratio]
    lines.append(f"auto behind coop in smallest memory: {', '.join(larger) or 'nowhere'}")
    return [f"- {line}" for line in lines]


def plot(rows: Sequence[Row], path: Path) -> None:
    """Added time and fragmentation by the memory, as in the paper's Figures 4 and 6."""
    import matplotlib.pyplot as plt

    models = list(dict.fromkeys(row.model for row in rows))
    colours = dict(zip((*POOLED, *OTHERS), ("tab:orange", "tab:green", "tab:red", "0.6", "tab:blue")))
    columns = min(4, len(models))
    deep = -(-len(models) // columns)
    figure, axes = plt.subplots(2 * deep, columns, figsize=(3.4 * columns, 5.2 * deep), squeeze=False)
    for k, name in enumerate(models):
        time_axis, free_axis = axes[k // columns][k % columns], axes[deep + k // columns][k % columns]
        for planner, colour in colours.items():
            own = [row for row in rows if (row.model, row.planner) == (name, planner) and row.fits]
            ratios = [100 * row.ratio for row in own]
            time_axis.plot(ratios, [row.added_percent for row in own], ".-", color=colour, label=planner)
            if planner in POOLED:
                free_axis.plot(ratios, [row.fragmentation for row in own], ".-", color=colour, label=planner)
        free_axis.axhline(5, color="0.8", linewidth=1)
        # A few budgets near the smallest would hide all others.
        time_axis.set(title=name, ylabel="added time, %" if k % columns == 0 else "", xlim=(95, 15), ylim=(0, 60))
        free_axis.set(title=name, ylabel="free when short, %" if k % columns == 0 else "", xlim=(95, 15), ylim=(0, 40))
        free_axis.set_xlabel("memory, %")
    for axis in list(axes.flat)[:: columns * deep]:
        axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


@dataclass(slots=True)
class Found:
    """All rows.

    Attributes:
        rows: Each way on each network at each ratio.
        smallest: The smallest memory of each way.
        ablated: Coop without each of its parts.
    """

    rows: list[Row] = field(default_factory=list)
    smallest: list[Row] = field(default_factory=list)
    ablated: list[Row] = field(default_factory=list)

    @staticmethod
    def read(path: Path) -> Found:
        """What `write` has written."""
        data = json.loads(path.read_text(encoding="utf-8"))
        return Found(**{part: [Row(**row) for row in rows] for part, rows in data.items()})

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")

    def add(self, model: CoopModel, ratios: Sequence[float]) -> None:
        """The rows of a network."""
        began = time.perf_counter()
        step = step_of(model)
        self.rows += rows_of(step, ratios)
        self.smallest += smallest_rows(step)
        self.ablated += ablation_rows(step)
        memory, seconds = (step.peak_bytes + step.beside_bytes) / 1e9, time.perf_counter() - began
        operators, step_ms = len(step.problem.graph.ops), step.problem.costs.step_ns / 1e6
        size = f"{operators} operators, {memory:.2f} GB, {step_ms:.0f} ms a step"
        print(f"{model.name}, {model.size}: {size} ({seconds:.0f} s)", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--ratios", nargs="*", type=float, default=RATIOS)
    parser.add_argument("--read", type=Path, help="tables of stored rows")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    found = Found.read(options.read) if options.read else Found()
    for name in () if options.read else options.models:
        found.add(MODELS[name], options.ratios)
        # After each network, since a whole run takes long.
        if options.json:
            found.write(options.json)
    text = tables(found.rows, found.smallest, found.ablated)
    print(text)
    if options.text:
        options.text.write_text(text + "\n", encoding="utf-8")
    if options.plot:
        plot(found.rows, options.plot)


if __name__ == "__main__":
    main()
