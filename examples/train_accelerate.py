"""accelerate under a byte budget, in one process or several.

python examples/train_accelerate.py --budget 6MiB
accelerate launch --num-processes 2 examples/train_accelerate.py --budget 6MiB
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

import remat_compiler
from masked_text import TEXT, Vocabulary, pieces, words_of
from small_bert import SmallBert


def main() -> None:
    """Train, and print the mean loss of all processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", help="of each process, such as 6MiB; none trains without")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    accelerator = Accelerator()

    words = words_of(TEXT.read_text(encoding="utf-8"))
    vocabulary = Vocabulary.of(words)
    data = pieces(vocabulary.encode(words), count=8 * options.steps * accelerator.num_processes, length=64)
    torch.manual_seed(0)
    model = SmallBert(len(vocabulary)).network
    if options.budget:
        # In place, before accelerate wraps it.
        remat_compiler.compile(model, options.budget, quiet=not accelerator.is_main_process)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    model, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=8))

    for step, batch in enumerate(batches):
        optimizer.zero_grad()
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        mean = accelerator.reduce(loss.detach(), "mean")
        accelerator.print(f"step {step}  loss {float(mean):.6f}", flush=True)
    # A process that ends earlier would cut off the others.
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
