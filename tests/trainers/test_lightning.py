"""Lightning's Trainer, of both packages: the same losses under a budget, what loggers get, the batch size that fits."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import remat_compiler
from remat_compiler.errors import OptionError
from trainers.small_net import BATCH, BUDGET, SmallNet, check_plan, rows

pytestmark = pytest.mark.filterwarnings("ignore:The number of training batches:UserWarning")
QUIET = {
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "accelerator": "cpu",
    "max_steps": 3,
}


@pytest.fixture(params=["lightning", "pytorch_lightning"])
def package(request: pytest.FixtureRequest) -> Any:
    """The package, a module class for it, and the callback for it."""
    pytest.importorskip(request.param)
    root = importlib.import_module("lightning.pytorch" if request.param == "lightning" else request.param)
    batch_size_finder = importlib.import_module(f"{root.__name__}.callbacks").BatchSizeFinder
    dummy = importlib.import_module(f"{root.__name__}.loggers.logger").DummyLogger

    class Learner(root.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self, network: Any, batch_size: int = BATCH) -> None:
            super().__init__()
            self.network, self.batch_size = network, batch_size
            self.losses: list[float] = []
            self.sizes: list[int] = []

        def training_step(self, batch: dict[str, torch.Tensor], number: int) -> torch.Tensor:
            self.sizes.append(len(batch["labels"]))
            loss = self.network(**batch)["loss"]
            self.log("loss", loss)
            return loss

        def on_train_batch_end(self, outputs: dict[str, torch.Tensor], batch: Any, number: int) -> None:
            self.losses.append(float(outputs["loss"]))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), 1e-3)

        def train_dataloader(self) -> Any:
            return DataLoader(rows(), batch_size=self.batch_size)

    class Logger(dummy):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.logged: list[dict[str, float]] = []

        def log_metrics(self, metrics: dict[str, float], step: int) -> None:  # type: ignore[override]
            self.logged.append({**metrics, "step": step})

    return SimpleNamespace(
        Trainer=root.Trainer,
        BatchSizeFinder=batch_size_finder,
        Learner=Learner,
        Logger=Logger,
        RematCallback=importlib.import_module(f"remat_compiler.trainers.{request.param}").RematCallback,
    )


def fitted(package: Any, learner: Any, *callbacks: Any, **settings: Any) -> Any:
    """The logger of a trainer, after it has fitted `learner`."""
    logger = package.Logger()
    callbacks = (package.RematCallback(), *callbacks)
    package.Trainer(logger=logger, callbacks=list(callbacks), **{**QUIET, **settings}).fit(learner)
    return logger


def test_losses_are_those_without_a_budget_and_the_logger_gets_the_plan(package: Any) -> None:
    fitted(package, stock := package.Learner(SmallNet()))
    network = remat_compiler.compile(SmallNet(), BUDGET, quiet=True)
    logger = fitted(package, learner := package.Learner(network))
    assert learner.losses == pytest.approx(stock.losses, rel=1e-5)
    assert len(learner.losses) == 3
    # Though only every fiftieth step is one to log.
    (plan,) = (one for one in logger.logged if "remat/budget_bytes" in one)
    check_plan(plan)
    assert plan["step"] == 1


@pytest.mark.parametrize("mode", ["power", "binsearch"])
@pytest.mark.parametrize("package", ["lightning"], indirect=True)
def test_a_batch_size_that_fits_is_found_without_running_out_of_memory(package: Any, mode: str) -> None:
    network = remat_compiler.compile(SmallNet(), "21500", quiet=True)
    learner = package.Learner(network, batch_size=8)
    finder = package.BatchSizeFinder(mode, steps_per_trial=1, init_val=8)
    logger = fitted(package, learner, finder)
    assert learner.sizes[:2] == [8, 16], "16 was refused, and nothing went wrong before"
    # Halved, or sought between the two and then less a margin of 5 %.
    assert learner.batch_size == 8 if mode == "power" else 8 < learner.batch_size < 16
    assert learner.sizes[-3:] == [learner.batch_size] * 3
    assert all(one["remat/predicted_peak_bytes"] <= 21500 for one in logger.logged if "remat/budget_bytes" in one)


def test_compiling_the_lightning_module_itself_is_refused(package: Any) -> None:
    """Its Trainer never calls it, so that it would train without a budget and without a word."""
    with pytest.raises(OptionError, match=r"remat_compiler\.compile\(module\.network"):
        remat_compiler.compile(package.Learner(SmallNet()), BUDGET)
