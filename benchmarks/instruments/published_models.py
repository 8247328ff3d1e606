"""GPT-2 as published tools of rematerialization plan it: captured on fake tensors of any size, priced for their GPUs.

Sizes are those of GPT-2 (Radford et al., 2019) as `topal-team/rockmate` (``models/GPT.py``) has them: small 12 layers
of 768, medium 24 of 1024, large 36 of 1280, xl 48 of 1600; materialised attention, dropout 0.1, a vocabulary of 50,257,
float32.  The loss is the mean of the logits, as in that repository's ``exp/exp.py``, or the cross entropy of every
token ("ce"), whose logits are most of the memory of a short network.

Rates are four fifths of what NVIDIA's data sheets name, and 5 µs a launch: Tesla V100 SXM2 15.7 TFLOP/s and 900 GB/s,
Quadro RTX 8000 16.3 TFLOP/s and 672 GB/s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from instruments.fake_capture import Captured, captured_on_fakes
from remat_compiler.costs.rates import Rates
from zoo.loss import TokenLoss

REACHED, LAUNCH_NS = 0.8, 5_000
"""Share of the data sheet's rates that kernels reach, and the time to start one."""


def gpu_rates(name: str, flops_per_s: float, bytes_per_s: float) -> Rates:
    """Rates of a GPU from its data sheet."""
    flops = {"float32": REACHED * flops_per_s}
    return Rates(flops, {}, REACHED * bytes_per_s, special_per_s=math.inf, overhead_ns=LAUNCH_NS, name=name)


GPUS = {
    "v100": gpu_rates("Tesla V100 SXM2", 15.7e12, 900e9),
    "rtx8000": gpu_rates("Quadro RTX 8000", 16.3e12, 672e9),
}


class MeanLogit(nn.Module):
    """A network of tokens under the mean of its logits."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, **tokens: Tensor) -> Tensor:
        """The mean."""
        mean: Tensor = self.network(**tokens).logits.mean()
        return mean


@dataclass(frozen=True, slots=True)
class Gpt2:
    """One network and its batch.

    Attributes:
        name: How tables call it.
        layers: Blocks.
        width: Hidden units.
        heads: Attention heads.
        batch: Sequences of a step.
        length: Tokens of a sequence.
        vocabulary: Different tokens.
        dropout: Probability of every dropout.
        tokens_lost: Whether the loss is the cross entropy of every token; else it is the mean of the logits.
    """

    name: str
    layers: int
    width: int
    heads: int
    batch: int
    length: int
    vocabulary: int = 50257
    dropout: float = 0.1
    tokens_lost: bool = False

    def build(self) -> tuple[nn.Module, dict[str, Tensor]]:
        """The network under its loss, in training mode, and its inputs; randomness is the caller's."""
        config = GPT2Config(
            vocab_size=self.vocabulary,
            n_positions=max(self.length, 1024),
            n_embd=self.width,
            n_layer=self.layers,
            n_head=self.heads,
            activation_function="gelu",
            resid_pdrop=self.dropout,
            embd_pdrop=self.dropout,
            attn_pdrop=self.dropout,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
        )
        network = GPT2LMHeadModel(config)
        network.set_attn_implementation("eager")
        tokens = torch.randint(self.vocabulary, (self.batch, self.length))
        if self.tokens_lost:
            return TokenLoss(network).train(), {"input_ids": tokens, "labels": tokens.clone()}
        return MeanLogit(network).train(), {"input_ids": tokens}


MODELS = {
    model.name: model
    for model in (
        Gpt2("gpt2-5", 5, 768, 12, 8, 512),
        Gpt2("gpt2-small", 12, 768, 12, 8, 512),
        Gpt2("gpt2-medium", 24, 1024, 16, 8, 512),
        Gpt2("gpt2-large", 36, 1280, 20, 4, 512),
        Gpt2("gpt2-xl", 48, 1600, 25, 4, 512),
        Gpt2("gpt2-112", 112, 768, 12, 2, 512),
        Gpt2("gpt2-small ce", 12, 768, 12, 8, 512, tokens_lost=True),
        Gpt2("gpt2-medium ce", 24, 1024, 16, 8, 512, tokens_lost=True),
    )
}
"""The networks of the comparison: as short as in HiRemate's comparison with Checkmate, up to 112 layers for size."""


def capture_fake(model: Gpt2) -> Captured:
    """`model` captured without its memory; see `captured_on_fakes`."""
    return captured_on_fakes(model.name, model.build, GPUS)
