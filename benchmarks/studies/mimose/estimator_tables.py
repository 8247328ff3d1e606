"""Trials of estimators: counted, printed and drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

GOAL = 0.5
"""Percent: what the paper reaches on its tasks."""


@dataclass(frozen=True, slots=True)
class Row:
    """One fit, judged on all sizes that it did not see.

    Attributes:
        task: Name of the task.
        estimator: Name of the estimator.
        samples: Samples fitted.
        seed: Seed of their sizes.
        train_ns: Time of the fit.
        predict_ns: Time of a prediction for all layers, the median.
        error: Relative error of the sum over the layers, mean over the sizes.
        inside: The same over the sizes between the samples.
        worst: The largest one.
    """

    task: str
    estimator: str
    samples: int
    seed: int
    train_ns: int
    predict_ns: int
    error: float
    inside: float
    worst: float


@dataclass(frozen=True, slots=True)
class Group:
    """The trials of one task, estimator and number of samples, one a seed from 0 on.

    Attributes:
        task: Name of the task.
        estimator: Name of the estimator.
        samples: Samples fitted.
        train_ms: Time of a fit, the median.
        predict_us: Time of a prediction for all layers, the median.
        error_percent: Error of each trial.
        inside_percent: Error between the samples, mean.
        worst_percent: The largest error at any size, in any trial.
    """

    task: str
    estimator: str
    samples: int
    train_ms: float
    predict_us: float
    error_percent: tuple[float, ...]
    inside_percent: float
    worst_percent: float


def groups(rows: Sequence[Row]) -> list[Group]:
    """The groups of `rows`, in the order in which they come."""
    found: dict[tuple[str, str, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row.task, row.estimator, row.samples), []).append(row)
    return [
        Group(
            *key,
            train_ms=round(median(row.train_ns for row in own) / 1e6, 3),
            predict_us=round(median(row.predict_ns for row in own) / 1e3, 1),
            error_percent=tuple(round(100 * row.error, 4) for row in own),
            inside_percent=round(100 * fmean(row.inside for row in own), 4),
            worst_percent=round(100 * max(row.worst for row in own), 2),
        )
        for key, own in found.items()
    ]


def table(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each group."""
    yield (
        f"{'task':11} {'estimator':18} {'n':>3} {'seeds':>5} {'fit ms':>8} {'predict µs':>10} {'error %':>8} "
        f"{'inside':>8} {'worst seed':>10} {'worst size':>10}  seeds above {GOAL} %"
    )
    for group in groups(rows):
        errors = group.error_percent
        yield (
            f"{group.task:11} {group.estimator:18} {group.samples:3} {len(errors):5} {group.train_ms:8.2f} "
            f"{group.predict_us:10.1f} {fmean(errors):8.3f} {group.inside_percent:8.3f} {max(errors):10.3f} "
            f"{group.worst_percent:10.2f}  {sum(error > GOAL for error in errors)}"
        )


def plot(rows: Sequence[Row], path: Path) -> None:
    """Errors by task, a group of bars each, one bar an estimator: 10 samples above, 50 below."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    trials = {(group.task, group.estimator, group.samples): group.error_percent for group in groups(rows)}
    tasks = list(dict.fromkeys(row.task for row in rows))
    estimators = list(dict.fromkeys(row.estimator for row in rows))
    counts = sorted({row.samples for row in rows})
    figure, axes = pyplot.subplots(len(counts), 1, figsize=(10, 3.2 * len(counts)), sharex=True, squeeze=False)
    width = 0.8 / len(estimators)
    for axis, count in zip(axes[:, 0], counts):
        for k, estimator in enumerate(estimators):
            for t, task in enumerate(tasks):
                own = trials[task, estimator, count]
                at = t - 0.4 + (k + 0.5) * width
                axis.bar(at, fmean(own), width, color=f"C{k}", label=estimator if t == 0 else None)
                axis.plot([at] * len(own), own, ".", color="black", markersize=2)
        axis.axhline(GOAL, color="grey", linestyle=":", linewidth=1)
        axis.set_yscale("symlog", linthresh=0.01)
        axis.set_yticks([0, 0.01, 0.1, 1, 10], ["0", "0.01", "0.1", "1", "10"])
        axis.set(ylabel="error of the sum, %", title=f"{count} samples", ylim=(0, None))
        axis.grid(axis="y", alpha=0.3)
    axes[-1, 0].set_xticks(range(len(tasks)), tasks)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="upper center", ncol=4, fontsize=8)
    figure.tight_layout(rect=(0, 0, 1, 0.92))
    figure.savefig(path, dpi=80)
