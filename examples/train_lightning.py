"""The Trainer of Lightning under a byte budget.

python examples/train_lightning.py --budget 6MiB
"""

from __future__ import annotations

import argparse

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor
from torch.utils.data import DataLoader

import remat_compiler
from masked_text import TEXT, Vocabulary, pieces, words_of
from remat_compiler.trainers.lightning import RematCallback
from small_bert import SmallBert


class Guesser(LightningModule):
    """A BERT that guesses hidden words, with its optimizer."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.model = SmallBert(words)

    def training_step(self, batch: dict[str, Tensor], number: int) -> Tensor:
        """The loss of one batch."""
        return self.model(batch["input_ids"], batch["labels"])

    def on_train_batch_end(self, outputs: dict[str, Tensor], batch: dict[str, Tensor], number: int) -> None:
        """Print the loss, and free gradients now: Lightning would do so only after the next forward."""
        print(f"step {number}  loss {float(outputs['loss']):.6f}", flush=True)
        self.zero_grad()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """One for all parameters."""
        return torch.optim.AdamW(self.parameters(), 1e-3)


def main() -> None:
    """Train, and print the losses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", help="such as 6MiB; none trains without")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    words = words_of(TEXT.read_text(encoding="utf-8"))
    vocabulary = Vocabulary.of(words)
    torch.manual_seed(0)
    module = Guesser(len(vocabulary))
    if options.budget:
        remat_compiler.compile(module.model, options.budget)  # the model inside, in place
    data = DataLoader(pieces(vocabulary.encode(words), count=8 * options.steps, length=64), batch_size=8)
    Trainer(max_steps=options.steps, callbacks=[RematCallback()], logger=CSVLogger("demo-output")).fit(module, data)


if __name__ == "__main__":
    main()
