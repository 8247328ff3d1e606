"""transformers' Trainer: the same losses under a budget, what its loggers get, and the batch size that fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

import remat_compiler
from remat_compiler.trainers.transformers import RematCallback
from trainers.small_net import BATCH, BUDGET, SmallNet, check_plan, rows


class Logger(TrainerCallback):
    """Stands for TensorBoard and W&B, which get what is logged in the same way."""

    def __init__(self) -> None:
        self.logged: list[dict[str, float]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **others: Any) -> None:
        self.logged.append(dict(logs))


class Sizes(Trainer):
    """Notes the batch sizes that are tried."""

    tried: tuple[int, ...] = ()

    def _inner_training_loop(self, batch_size: int, *arguments: Any, **others: Any) -> Any:
        self.tried += (batch_size,)
        return super()._inner_training_loop(batch_size, *arguments, **others)


def trained(folder: Path, model: SmallNet, **settings: Any) -> tuple[Sizes, Logger]:
    """A trainer after three steps, and what its logger got."""
    given = {"per_device_train_batch_size": BATCH, "max_steps": 3, "logging_steps": 1, "max_grad_norm": 0.0, **settings}
    arguments = TrainingArguments(
        str(folder), save_strategy="no", disable_tqdm=True, report_to="none", use_cpu=True, **given
    )
    trainer = Sizes(model, arguments, train_dataset=rows(), eval_dataset=rows(8), callbacks=[logger := Logger()])
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(RematCallback(trainer))
    trainer.train()
    return trainer, logger


def losses(logger: Logger) -> list[float]:
    return [one["loss"] for one in logger.logged if "loss" in one]


def test_losses_are_those_without_a_budget_and_the_logger_gets_the_plan(tmp_path: Path) -> None:
    _, stock = trained(tmp_path, SmallNet())
    _, logger = trained(tmp_path, remat_compiler.compile(SmallNet(), BUDGET, quiet=True))
    # A log of the callback's own must not take the place of the loss that is due at the same step.
    assert losses(logger) == pytest.approx(losses(stock), rel=1e-5)
    assert len(losses(logger)) == 3
    (plan,) = (one for one in logger.logged if "remat/budget_bytes" in one)
    check_plan(plan)
    assert not any(name.startswith("remat/") for one in stock.logged for name in one)


def test_variables_name_the_budget_of_a_model_that_only_names_the_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMAT_MEMORY_BUDGET", BUDGET)
    model = SmallNet()
    model.compile(backend="remat")
    _, logger = trained(tmp_path, model)
    check_plan(next(one for one in logger.logged if "remat/budget_bytes" in one))


@pytest.mark.parametrize(
    "settings",
    [
        {"gradient_accumulation_steps": 2, "per_device_train_batch_size": BATCH // 2},
        {"bf16": True},
        {"eval_strategy": "steps", "eval_steps": 2},
    ],
    ids=["accumulated", "autocast", "evaluated between"],
)
def test_settings_of_the_trainer(tmp_path: Path, settings: dict[str, Any]) -> None:
    _, stock = trained(tmp_path, SmallNet(), **settings)
    _, logger = trained(tmp_path, remat_compiler.compile(SmallNet(), BUDGET, quiet=True), **settings)
    assert losses(logger) == pytest.approx(losses(stock), rel=1e-4)
    assert remat_compiler.reports()


def test_a_batch_size_that_fits_is_found_without_running_out_of_memory(tmp_path: Path) -> None:
    model = remat_compiler.compile(SmallNet(), "33000", quiet=True)
    trainer, logger = trained(tmp_path, model, per_device_train_batch_size=39, auto_find_batch_size=True)
    # Each is nine tenths of the one before; only the last one fits, and only there is anything trained.
    assert trainer.tried == (39, 35, 31)
    assert trainer.state.train_batch_size == 31
    _, stock = trained(tmp_path, SmallNet(), per_device_train_batch_size=31)
    assert losses(logger) == pytest.approx(losses(stock), rel=1e-5)
    plans = [one for one in logger.logged if "remat/budget_bytes" in one]
    assert plans[-1]["remat/predicted_peak_bytes"] <= 33000
