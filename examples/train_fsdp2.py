"""FSDP2 under a byte budget: each block is compiled in place, then sharded.

torchrun --nproc-per-node 2 examples/train_fsdp2.py --budget 6MiB
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import remat_compiler
from masked_text import TEXT, Vocabulary, batches, words_of
from small_bert import SmallBert


def main() -> None:
    """Train, and print the mean loss of all processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", help="of each process; none trains without")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, device = dist.get_rank(), torch.device("cuda", dist.get_node_local_rank())
    device = device if torch.cuda.is_available() else torch.device("cpu")

    words = words_of(TEXT.read_text(encoding="utf-8"))
    vocabulary = Vocabulary.of(words)
    torch.manual_seed(0)
    model = SmallBert(len(vocabulary)).to(device)
    for layer in model.layers:
        if options.budget:
            # In place, before it is sharded.  All blocks share the budget.
            remat_compiler.compile(layer, options.budget, dynamic=False, quiet=rank > 0)
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    given = batches(vocabulary.encode(words), size=8, length=64, seed=rank)
    for step, batch in zip(range(options.steps), given):
        optimizer.zero_grad()
        loss = model(batch["input_ids"].to(device), batch["labels"].to(device))
        loss.backward()
        optimizer.step()
        mean = loss.detach() / dist.get_world_size()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step}  loss {float(mean):.4f}", flush=True)
    # A process that ends earlier would cut off the others.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
