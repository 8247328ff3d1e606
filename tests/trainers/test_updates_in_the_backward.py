"""Updates within the backward, as trainers and recipes make them: the steps of eager, without the gradients' memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import remat_compiler
from instruments.measure import measure_step
from trainers.small_net import BATCH, SmallNet, rows

WIDTH = 256
Trains = Callable[[SmallNet, Path], torch.optim.Optimizer]


def wide() -> SmallNet:
    """Parameters that are larger than activations."""
    model = SmallNet()
    within = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(8)]
    model.layers = nn.Sequential(nn.Linear(8, WIDTH), *within, nn.Linear(WIDTH, 8), *model.layers)
    return model


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2)


def by_hand(model: SmallNet, folder: Path) -> torch.optim.Optimizer:
    optimizer = adam(model.parameters())
    for batch in batches():
        optimizer.zero_grad()
        model(**batch)["loss"].backward()
        optimizer.step()
    return optimizer


def by_trainer(model: SmallNet, folder: Path) -> torch.optim.Optimizer:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    optimizer = remat_compiler.step_in_backward(model, adam)
    quiet = {"save_strategy": "no", "disable_tqdm": True, "report_to": "none", "use_cpu": True}
    order = {"per_device_train_batch_size": BATCH, "max_steps": 3, "train_sampling_strategy": "sequential"}
    arguments = transformers.TrainingArguments(str(folder), max_grad_norm=0.0, **quiet, **order)
    constant = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    transformers.Trainer(model, arguments, train_dataset=rows(), optimizers=(optimizer, constant)).train()
    return optimizer


def by_lightning(model: SmallNet, folder: Path) -> torch.optim.Optimizer:
    lightning = pytest.importorskip("lightning.pytorch")

    class Learner(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.network, self.automatic_optimization = model, False

        def training_step(self, batch: dict[str, Tensor], number: int) -> None:
            self.manual_backward(self.network(**batch)["loss"])
            # Lightning counts the steps by it; there is no gradient any more.
            self.optimizers().step()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return remat_compiler.step_in_backward(self.network, adam)

    quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(accelerator="cpu", max_steps=3, logger=False, default_root_dir=folder, **quiet)
    trainer.fit(learner := Learner(), DataLoader(rows(), batch_size=BATCH))
    optimizer = learner.optimizers(use_pl_optimizer=False)
    assert isinstance(optimizer, torch.optim.Optimizer)
    return optimizer


def by_one_optimizer_each(model: SmallNet, folder: Path) -> torch.optim.Optimizer:
    """As torchtune's recipes do with `optimizer_in_bwd`, and torch's tutorial."""
    optimizers = {one: adam([one]) for one in model.parameters()}

    def step(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for one in model.parameters():
        one.register_post_accumulate_grad_hook(step)  # type: ignore[no-untyped-call]
    for batch in batches():
        model(**batch)["loss"].backward()
    return next(iter(optimizers.values()))


def batches() -> Iterator[dict[str, Tensor]]:
    return iter(DataLoader(rows(), batch_size=BATCH))


@pytest.mark.parametrize("trains", [by_trainer, by_lightning, by_one_optimizer_each])
def test_steps_are_those_of_eager_and_gradients_are_never_alive_together(trains: Trains, tmp_path: Path) -> None:
    expected, model = wide(), wide()
    by_hand(expected, tmp_path)
    trains(remat_compiler.compile(model, "min", quiet=True), tmp_path)
    for (name, one), other in zip(model.named_parameters(), expected.parameters()):
        torch.testing.assert_close(one, other, rtol=0, atol=0, msg=name)
        assert one.grad is None
    batch = next(batches())
    gradient_bytes = sum(one.nbytes for one in model.parameters())
    model.train()
    measured = measure_step(lambda: model(**batch)["loss"].backward(), warmup=1).peak_bytes
    # An update makes temporaries as large as its parameter.
    assert measured < gradient_bytes / 2
