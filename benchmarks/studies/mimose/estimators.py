"""Tables 3 and 4 of Mimose: how well, and how fast, the bytes of layers at unseen sizes are predicted from a few.

    python -m studies.mimose.estimators [--seeds 20] [--tasks TC-Bert ...] [--estimators 'SVR, radial' ...]
                                        [--round-to 512] [--samples FILE] [--json OUT.json] [--plot OUT.png]

Samples are measured, not computed: the bytes that the eager forward of each model saves in each layer, on the CPU, at
every size of the range (`varying_models`).  A trial draws some different sizes from the task's distribution, fits, and
is judged on all other sizes of the range: the error of the sum over the layers, its mean over the sizes (also over
those between the samples alone) and its largest.  Distributions have the paper's ranges and shapes (its Figure 3), not
its data: a normal one in the middle of the range, cut at its ends, and a power law of exponent 2 that falls from the
shortest.

Rivals are scikit-learn's, as the paper's were, one regressor for all layers where it can, else one a layer; gradient
boosting is its own, in place of XGBoost.  Sizes and bytes are standardised for the SVR, which cannot do without; its
parameters are among the best of a few that were tried, and not scikit-learn's own.
`--samples` keeps what was measured between runs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVR
from sklearn.tree import DecisionTreeRegressor

from remat_compiler.dynamic_shapes.mimose.polynomial import LayerSample, PolynomialEstimator
from remat_passes.planning.mimose import choose_layers
from studies.mimose.estimator_tables import Row, groups, plot, table
from studies.mimose.varying_models import VaryingModel, bert, roberta, swin, xlnet

COUNTS = (10, 50)
TIMED = 30
"""Predictions of a trial that are timed, one by one."""
BUDGET_SHARE = 0.5
"""Part of the predicted bytes that the scheduler, where it is timed, must drop."""


@dataclass(frozen=True, slots=True)
class Task:
    """A model with the sizes that its data set has.

    Attributes:
        build: Makes the model.
        low: Least size.
        high: Largest size.
        power: Whether sizes follow a power law, or else a normal distribution.
    """

    build: Callable[[], VaryingModel]
    low: int
    high: int
    power: bool

    def everything(self) -> list[tuple[int, ...]]:
        """All sizes that are measured."""
        return [(size,) for size in range(self.low, self.high + 1)]

    def draw(self, rng: np.random.Generator, count: int) -> list[tuple[int, ...]]:
        """`count` different sizes, in the order in which they come."""
        found: dict[tuple[int, ...], None] = {}
        while len(found) < count:
            found.setdefault((self._one(rng),))
        return list(found)

    def _one(self, rng: np.random.Generator) -> int:
        if self.power:
            # The inverse of a distribution function whose density falls with the square of the size.
            return round(1 / (1 / self.low - rng.random() * (1 / self.low - 1 / self.high)))
        middle, deviation = (self.low + self.high) / 2, (self.high - self.low) / 5
        while True:
            size = round(rng.normal(middle, deviation))
            if self.low <= size <= self.high:
                return size


TASKS: dict[str, Task] = {
    "MC-Roberta": Task(roberta, 35, 141, power=False),
    "QA-XLNet": Task(xlnet, 153, 512, power=False),
    "QA-Bert": Task(bert, 153, 512, power=False),
    "TC-Bert": Task(bert, 30, 332, power=True),
    "IM-Swin": Task(swin, 200, 448, power=False),
}
"""The paper's four tasks: RoBERTa on SWAG, XLNet and BERT on SQuAD, BERT on GLUE-QQP; and images of varying sides."""


class OfScikit:
    """A regressor behind the two calls that are timed."""

    def __init__(self, regressor: RegressorMixin) -> None:
        self.regressor = regressor

    def train(self, samples: Sequence[LayerSample]) -> None:
        """Fit all layers."""
        sizes = np.array([sample.sizes for sample in samples], np.float64)
        self.regressor.fit(sizes, np.array([sample.block_bytes for sample in samples], np.float64))

    def totals(self, sizes: Sequence[tuple[int, ...]]) -> list[float]:
        """Bytes of all layers at each of `sizes`."""
        return self.regressor.predict(np.array(sizes, np.float64)).sum(axis=1).tolist()


class OfSizes:
    """Our own estimator behind the same calls."""

    def __init__(self, degree: int) -> None:
        self.estimator = PolynomialEstimator(degree, most_samples=max(COUNTS))

    def train(self, samples: Sequence[LayerSample]) -> None:
        """Fit all layers, and their times."""
        self.estimator.add_all(samples)

    def totals(self, sizes: Sequence[tuple[int, ...]]) -> list[float]:
        """Bytes of all layers at each of `sizes`."""
        return [self.estimator.predict(one).total_bytes for one in sizes]


def _svr(svr: SVR) -> RegressorMixin:
    own = TransformedTargetRegressor(svr, transformer=StandardScaler())
    return make_pipeline(StandardScaler(), MultiOutputRegressor(own))


ESTIMATORS: dict[str, Callable[[], OfSizes | OfScikit]] = {
    "polynomial n=1": lambda: OfSizes(1),
    "polynomial n=2": lambda: OfSizes(2),
    "polynomial n=3": lambda: OfSizes(3),
    "SVR, radial": lambda: OfScikit(_svr(SVR(C=100, gamma=0.1, epsilon=0.01))),
    "SVR, quadratic": lambda: OfScikit(_svr(SVR(kernel="poly", degree=2, coef0=1, C=100, epsilon=0.01))),
    "decision tree": lambda: OfScikit(DecisionTreeRegressor(random_state=0)),
    "gradient boosting": lambda: OfScikit(MultiOutputRegressor(GradientBoostingRegressor(random_state=0))),
}
SLOW = frozenset({"gradient boosting"})
"""Estimators that get a quarter of the trials."""


def measured(name: str, path: Path | None, round_to: int = 1) -> dict[tuple[int, ...], LayerSample]:
    """A sample for every size of task `name`; kept in the file `path`, if any."""
    task, key = TASKS[name], f"{name}, {round_to}"
    kept: dict[str, list[list[list[int]]]] = json.loads(path.read_text()) if path and path.exists() else {}
    if key not in kept:
        torch.manual_seed(0)
        model = task.build()
        samples = [model.measure(*sizes, round_to=round_to) for sizes in task.everything()]
        kept[key] = [[list(one.sizes), list(one.block_bytes), list(one.block_ns)] for one in samples]
        if path:
            path.write_text(json.dumps(kept))
    rows = (LayerSample(*map(tuple, row)) for row in kept[key])
    return {sample.sizes: sample for sample in rows}


def trial(name: str, kind: str, count: int, seed: int, samples: dict[tuple[int, ...], LayerSample]) -> Row:
    """One estimator, fitted to `count` samples."""
    seen = TASKS[name].draw(np.random.default_rng(seed), count)
    estimator = ESTIMATORS[kind]()
    start = time.perf_counter_ns()
    estimator.train([samples[size] for size in seen])
    train_ns = time.perf_counter_ns() - start
    unseen = sorted(samples.keys() - set(seen))
    spent = []
    for one in unseen[:: max(len(unseen) // TIMED, 1)]:
        start = time.perf_counter_ns()
        estimator.totals([one])
        spent.append(time.perf_counter_ns() - start)
    true = [sum(samples[one].block_bytes) for one in unseen]
    errors = [abs(got / have - 1) for got, have in zip(estimator.totals(unseen), true)]
    low, high = np.min(seen, axis=0), np.max(seen, axis=0)
    inside = [error for error, one in zip(errors, unseen) if (low <= one).all() and (one <= high).all()]
    return Row(name, kind, count, seed, train_ns, int(median(spent)), fmean(errors), fmean(inside), max(errors))


def scheduling_ns(name: str, samples: dict[tuple[int, ...], LayerSample]) -> tuple[int, int]:
    """Median time of a prediction and of Algorithm 1 on it, over all sizes."""
    estimator = OfSizes(2)
    estimator.train([samples[size] for size in TASKS[name].draw(np.random.default_rng(0), COUNTS[0])])
    predicting, choosing = [], []
    for size in sorted(samples):
        start = time.perf_counter_ns()
        estimate = estimator.estimator.predict(size)
        between = time.perf_counter_ns()
        choose_layers(estimate.block_bytes, int(BUDGET_SHARE * estimate.total_bytes))
        choosing.append(time.perf_counter_ns() - between)
        predicting.append(between - start)
    return int(median(predicting)), int(median(choosing))


def main() -> None:
    """Measure, try, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="trials of each estimator")
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--estimators", nargs="*", default=list(ESTIMATORS), choices=list(ESTIMATORS))
    parser.add_argument(
        "--round-to", type=int, default=1, help="bytes that each tensor takes multiples of; CUDA's: 512"
    )
    parser.add_argument("--samples", type=Path, help="file that keeps what was measured")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    scheduling: dict[str, tuple[int, int]] = {}
    for name in options.tasks:
        start = time.time()
        samples = measured(name, options.samples, options.round_to)
        ends = [sum(samples[size].block_bytes) / 1e6 for size in (min(samples), max(samples))]
        blocks = len(samples[min(samples)].block_bytes)
        print(
            f"{name}: {len(samples)} sizes, {blocks} blocks, {ends[0]:.1f} to {ends[1]:.1f} MB, "
            f"measured in {time.time() - start:.0f} s"
        )
        for kind in options.estimators:
            seeds = max(options.seeds // 4, 1) if kind in SLOW else options.seeds
            rows += [trial(name, kind, count, seed, samples) for count in COUNTS for seed in range(seeds)]
        scheduling[name] = scheduling_ns(name, samples)
    print("\n".join(table(rows)))
    for name, (predicting, choosing) in scheduling.items():
        print(f"{name}: predict {predicting / 1e3:.1f} µs, Algorithm 1 {choosing / 1e3:.1f} µs")
    if options.json:
        lines = ",\n".join(json.dumps(asdict(group)) for group in groups(rows))
        options.json.write_text(f'{{"scheduling_ns": {json.dumps(scheduling)},\n"groups": [\n{lines}\n]}}\n')
    if options.plot:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()
