"""The Trainer of transformers under a byte budget.

python examples/train_transformers.py --budget 6MiB
"""

from __future__ import annotations

import argparse
from tempfile import TemporaryDirectory

import torch
from transformers import Trainer, TrainingArguments

import remat_compiler
from masked_text import TEXT, Vocabulary, pieces, words_of
from remat_compiler.trainers.transformers import RematCallback
from small_bert import SmallBert


def main() -> None:
    """Train, and print the losses that the Trainer logged."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", help="such as 6MiB; none trains without")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()

    words = words_of(TEXT.read_text(encoding="utf-8"))
    vocabulary = Vocabulary.of(words)
    data = pieces(vocabulary.encode(words), count=8 * options.steps, length=64)
    torch.manual_seed(0)
    model = SmallBert(len(vocabulary)).network
    if options.budget:
        # In place, before the Trainer takes it.
        remat_compiler.compile(model, options.budget)

    with TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=options.steps,
            per_device_train_batch_size=8,
            learning_rate=1e-3,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            logging_steps=1,
            save_strategy="no",
            disable_tqdm=True,
            report_to="none",  # or "tensorboard", "wandb": they show what `RematCallback` reports
        )
        trainer = Trainer(model, arguments, train_dataset=data)
        if options.budget:
            trainer.add_callback(RematCallback(trainer))
        trainer.train()
    for logged in trainer.state.log_history:
        if "loss" in logged:
            print(f"step {logged['step'] - 1}  loss {logged['loss']:.6f}")


if __name__ == "__main__":
    main()
