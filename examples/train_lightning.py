"""The Trainer of Lightning under a byte budget.

python examples/train_lightning.py --budget 6MiB
"""

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
        self.network = SmallBert(words).network

    def training_step(self, batch: dict[str, Tensor], number: int) -> Tensor:
        """The loss of one batch."""
        loss: Tensor = self.network(**batch).loss
        print(f"step {number}  loss {float(loss.detach()):.6f}", flush=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """One optimizer."""
        return torch.optim.AdamW(self.parameters(), 1e-3)


def main() -> None:
    """Train, and print the losses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", help="such as 6MiB; none trains without")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--logs", help="folder for the logs as CSV; none keeps none")
    options = parser.parse_args()
    words = words_of(TEXT.read_text(encoding="utf-8"))
    vocabulary = Vocabulary.of(words)
    data = DataLoader(pieces(vocabulary.encode(words), count=8 * options.steps, length=64), batch_size=8)
    torch.manual_seed(0)
    module = Guesser(len(vocabulary))
    # The network inside, in place; the callback tells Lightning's loggers of the plan.
    if options.budget:
        remat_compiler.compile(module.network, options.budget)
    logger = CSVLogger(options.logs) if options.logs else False
    silent = dict.fromkeys(("enable_checkpointing", "enable_model_summary", "enable_progress_bar"), False)
    trainer = Trainer(max_steps=options.steps, logger=logger, callbacks=[RematCallback()], **silent)
    trainer.fit(module, data)


if __name__ == "__main__":
    main()
