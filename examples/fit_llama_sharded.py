"""Llama 3 of 70 billion parameters at 8,192 tokens, sharded by FSDP2: the step of one rank of 64, on cards not there.

remat fit examples/fit_llama_sharded.py:make --device h100 --batch 1 --optimizer adamw --budget 30GiB
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import LlamaConfig, LlamaForCausalLM

RANKS = int(os.environ.get("RANKS", "64"))
REPLICAS = int(os.environ.get("REPLICAS", "1"))  # groups of ranks that each have the whole model
LENGTH = 8192
CONFIG = LlamaConfig(
    vocab_size=128_256,
    hidden_size=8192,
    intermediate_size=28_672,
    num_hidden_layers=int(os.environ.get("LAYERS", "80")),
    num_attention_heads=64,
    num_key_value_heads=8,
    max_position_embeddings=LENGTH,
    rope_theta=500_000.0,
    use_cache=False,
)


class LanguageModel(nn.Module):
    """Llama that returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.llama = LlamaForCausalLM(CONFIG)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean loss of the next tokens; both arguments are of shape (batch, length)."""
        logits = self.llama(tokens).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def make(batch: int) -> tuple[Any, ...]:
    """The model and the inputs of one step of one rank; parameters are kept in float32, and gathered in bfloat16."""
    if not dist.is_initialized():
        # Its collectives do nothing.
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    if REPLICAS > 1:
        mesh = init_device_mesh("cuda", (REPLICAS, RANKS // REPLICAS), mesh_dim_names=("replicate", "shard"))
    else:
        mesh = init_device_mesh("cuda", (RANKS,))
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    model = LanguageModel()
    for layer in model.llama.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    tokens = torch.zeros(batch, LENGTH, dtype=torch.long)
    return model, (tokens, tokens.clone())
