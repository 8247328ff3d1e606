"""DDP under a byte budget: each process trains on batches of its own.

torchrun --nproc-per-node 2 examples/train_ddp.py --budget 6MiB
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

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
    if options.budget:
        # Before DDP wraps it.  The ranks make the same plan.
        remat_compiler.compile(model, options.budget, dynamic=False, quiet=rank > 0)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(parallel.parameters(), 1e-3)

    given = batches(vocabulary.encode(words), size=8, length=64, seed=rank)
    for step, batch in zip(range(options.steps), given):
        optimizer.zero_grad()
        loss = parallel(batch["input_ids"].to(device), batch["labels"].to(device))
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
