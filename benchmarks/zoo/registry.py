"""One table of the zoo: name -> builder, looked up lazily so that a name costs only the libraries it needs.

A builder takes ``(tiny, dropout)`` and returns the module, whose forward is a scalar loss, and its inputs.  Sizes are
such that a step takes well under a second on two cores, and such that gradients, saved values and temporaries all
matter.  Adding a model is one builder and one line here.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

import torch
from torch import Tensor, nn

Built = tuple[nn.Module, dict[str, Tensor]]
Builder = Callable[[bool, float], Built]

BUILDERS: dict[str, str] = {
    "gpt2": "zoo.attention:build_gpt2",
    "gpt2eagerattn": "zoo.attention:build_gpt2eagerattn",
    "gpt2tiny24": "zoo.attention:build_gpt2tiny24",
    "gpt2tiny96": "zoo.attention:build_gpt2tiny96",
    "bert": "zoo.attention:build_bert",
    "t5": "zoo.attention:build_t5",
    "llama": "zoo.attention:build_llama",
    "vit": "zoo.attention:build_vit",
    "vgg19": "zoo.vision:build_vgg19",
    "alexnet": "zoo.vision:build_alexnet",
    "resnet50": "zoo.vision:build_resnet50",
    "unet": "zoo.vision:build_unet",
    "lstm": "zoo.sequential:build_lstm",
    "mlp200": "zoo.sequential:build_mlp200",
    "mamba": "zoo.newer:build_mamba",
    "nerf": "zoo.newer:build_nerf",
    "gnn": "zoo.newer:build_gnn",
    "convnext": "zoo.newer:build_convnext",
    "diffusion": "zoo.newer:build_diffusion",
}


@dataclass(frozen=True, slots=True)
class ZooModel:
    """A training step to be: ``module(**inputs)`` is a scalar loss.

    Attributes:
        name: Name in the zoo.
        module: The model with its loss, in training mode, float32, on the CPU.
        inputs: Example inputs by parameter name; none requires a gradient.
    """

    name: str
    module: nn.Module
    inputs: dict[str, Tensor]

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the gradients that a step leaves: a floor of its peak."""
        return sum(p.numel() * p.element_size() for p in self.module.parameters() if p.requires_grad)


def names() -> tuple[str, ...]:
    """Every name that `build` knows, in the order in which tables list them."""
    return tuple(BUILDERS)


def build(name: str, *, dropout: float = 0.0, tiny: bool = False, seed: int = 0) -> ZooModel:
    """The model `name` with weights and inputs drawn from `seed`; the global random state is left as it was.

    Args:
        name: One of `names()`.
        dropout: Probability of every dropout of the model, in [0, 1); at 0 no dropout is in the graph of models
            written here, and only operators without effect in those of `transformers`.
        tiny: The same structure scaled down, for tests.
        seed: Seed of weights and inputs.

    Raises:
        KeyError: The name is not in the zoo.
        ValueError: The dropout is not in [0, 1).
    """
    if name not in BUILDERS:
        near = difflib.get_close_matches(name, BUILDERS, n=3) or list(BUILDERS)
        raise KeyError(f"got the model {name!r}; the zoo has no such name; near: {', '.join(near)}")
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"got dropout {dropout}; allowed is a probability of at least 0 and below 1")
    module_name, function_name = BUILDERS[name].split(":")
    builder: Builder = getattr(import_module(module_name), function_name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module, inputs = builder(tiny, dropout)
    return ZooModel(name, module.train(), inputs)
