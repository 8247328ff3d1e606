"""Models whose activations are measured at many input sizes, and how: what autograd saves in each layer.

BERT-like, RoBERTa-like and XLNet-like ones from transformers with random weights, six layers like the published ones in
kind, not in size; and a Swin-like one, whose windows pad the image.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    RobertaConfig,
    RobertaForMultipleChoice,
    SwinConfig,
    SwinForImageClassification,
    XLNetConfig,
    XLNetForQuestionAnsweringSimple,
)

from remat_compiler.dynamic_shapes.mimose.polynomial import LayerSample

LAYERS, WIDTH, HEADS, VOCABULARY, LONGEST = 6, 96, 4, 500, 512


@dataclass(frozen=True, slots=True, eq=False)
class VaryingModel:
    """A model, its layers, and its inputs for each size.

    Attributes:
        module: The model, in training mode.
        layers: Modules whose activations are told apart, in the order of the forward; what runs outside of them is one
            more block, the last.
        inputs: Keyword arguments of the forward for sizes.
    """

    module: nn.Module
    layers: Sequence[nn.Module]
    inputs: Callable[..., dict[str, Tensor]]

    def measure(self, *sizes: int, round_to: int = 1) -> LayerSample:
        """Bytes that one forward saves in each block, each storage once, and the time of each layer.

        Parameters, buffers and inputs are not counted: they are there before.

        Args:
            sizes: What varies.
            round_to: Each storage counts as a multiple of so many bytes, as with an allocator that gives no less.
        """
        inputs = self.inputs(*sizes)
        before = (*self.module.parameters(), *self.module.buffers(), *inputs.values())
        known = {tensor.untyped_storage().data_ptr() for tensor in before}
        saved, spent = [0] * (len(self.layers) + 1), [0] * (len(self.layers) + 1)
        running = [len(self.layers)]
        alive: list[Tensor] = []

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in known:
                known.add(storage.data_ptr())
                saved[running[-1]] += -(-storage.nbytes() // round_to) * round_to
                alive.append(tensor.detach())  # so that no other storage comes to stand at its address
            # The result of an operator that held itself would never be freed.
            return tensor.detach()

        def enter(layer: int) -> Callable[..., None]:
            def hook(*_: Any) -> None:
                running.append(layer)
                spent[layer] -= time.perf_counter_ns()

            return hook

        def leave(layer: int) -> Callable[..., None]:
            def hook(*_: Any) -> None:
                spent[layer] += time.perf_counter_ns()
                running.pop()

            return hook

        hooks = [layer.register_forward_pre_hook(enter(k)) for k, layer in enumerate(self.layers)]
        hooks += [layer.register_forward_hook(leave(k)) for k, layer in enumerate(self.layers)]
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            self.module(**inputs)
        for hook in hooks:
            hook.remove()
        return LayerSample(sizes, tuple(saved), tuple(spent))


def _tokens(batch: tuple[int, ...]) -> Callable[..., dict[str, Tensor]]:
    return lambda length: {"input_ids": torch.randint(5, VOCABULARY, (*batch, length))}


_ENCODER: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 4 * WIDTH,
    "attn_implementation": "eager",
}
"""What BERT and RoBERTa have in common."""


def bert() -> VaryingModel:
    """TC-Bert and QA-Bert: a BERT with a classifier."""
    config = BertConfig(max_position_embeddings=LONGEST, **_ENCODER)
    module = BertForSequenceClassification(config).train()
    return VaryingModel(module, list(module.bert.encoder.layer), _tokens((4,)))


def roberta() -> VaryingModel:
    """MC-Roberta: four choices a question."""
    config = RobertaConfig(max_position_embeddings=LONGEST + 2, **_ENCODER)
    module = RobertaForMultipleChoice(config).train()
    return VaryingModel(module, list(module.roberta.encoder.layer), _tokens((1, 4)))


def xlnet() -> VaryingModel:
    """QA-XLNet: relative positions, twice the length of the text."""
    config = XLNetConfig(vocab_size=VOCABULARY, d_model=WIDTH, n_layer=LAYERS, n_head=HEADS, d_inner=4 * WIDTH)
    module = XLNetForQuestionAnsweringSimple(config).train()
    return VaryingModel(module, list(module.transformer.layer), _tokens((2,)))


def swin() -> VaryingModel:
    """IM-Swin: square images of 193 pixels a side or more, so that its windows do not shrink with the map."""
    config = SwinConfig(
        embed_dim=16, depths=[2, 2, 2, 2], num_heads=[2, 4, 8, 16], window_size=7, attn_implementation="eager"
    )
    module = SwinForImageClassification(config).train()
    layers: list[nn.Module] = [module.swin.embeddings]
    for stage in module.swin.encoder.layers:
        layers += [*stage.blocks, *([] if stage.downsample is None else [stage.downsample])]
    return VaryingModel(module, layers, lambda side: {"pixel_values": torch.randn(2, 3, side, side)})
