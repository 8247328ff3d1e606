"""Models of the package transformers whose memory on a GPU was published."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Made = tuple[Any, ...]
"""Model, inputs and loss."""


@dataclass(frozen=True, slots=True)
class Transformers:
    """A model of the package transformers by its configuration; the loss is that of the next token, or its own.

    Attributes:
        kind: ``GPT2``, ``OPT``, ``GPTNeoX`` or ``Bert``.
        batch: Sequences.
        length: Tokens of each.
        attention: ``eager``, ``sdpa``, ``clamped``: the eager one of OPT as releases of 2024 have it, or ``kept``: an
            eager one whose softmax keeps what it was made of, which that of torch did before 1.11 (pytorch#64000).
        dtype: Of all parameters.
        checkpoints: Whether each layer is checkpointed.
        settings: What the configuration sets beyond its defaults.
    """

    kind: str
    batch: int
    length: int
    attention: str
    dtype: torch.dtype
    settings: tuple[tuple[str, Any], ...] = ()
    checkpoints: bool = False

    def __call__(self) -> Made:
        """The step."""
        import transformers
        from transformers.masking_utils import eager_mask

        head = {"GPT2": "GPT2LMHeadModel", "OPT": "OPTForCausalLM", "GPTNeoX": "GPTNeoXForCausalLM"}
        config = getattr(transformers, f"{self.kind}Config")(**dict(self.settings), use_cache=False)
        if self.attention in _OLDER:
            transformers.AttentionInterface.register(self.attention, _OLDER[self.attention])
            transformers.AttentionMaskInterface.register(self.attention, eager_mask)
        config._attn_implementation = self.attention
        model = getattr(transformers, head.get(self.kind, "BertForSequenceClassification"))(config)
        model.to(self.dtype).train()
        if self.checkpoints:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
        tokens = torch.zeros(self.batch, self.length, dtype=torch.long)
        if self.kind == "Bert":
            return model, {"input_ids": tokens, "labels": torch.zeros(self.batch, dtype=torch.long)}
        return model, {"input_ids": tokens}, partial(_shifted_entropy, tokens.clone())


def _shifted_entropy(labels: Tensor, outputs: Any) -> Tensor:
    """The loss as releases of 2024 have it: in the type of the logits, of which all but the last are copied."""
    logits = outputs.logits[:, :-1].contiguous()
    return F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())


def _clamped(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **settings: Any) -> Any:
    """Scores below the least number of their type are set to it, so that the backward keeps them from before."""
    scores = torch.matmul(query, key.transpose(2, 3)) + mask
    scores = torch.max(scores, torch.full((), torch.finfo(scores.dtype).min, dtype=scores.dtype, device=scores.device))
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype)
    weights = F.dropout(weights, settings["dropout"], module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), None


def _kept(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **settings: Any) -> Any:
    """BERT's, with the softmax of then."""
    scores = torch.matmul(query, key.transpose(2, 3)) * settings["scaling"]
    weights: Tensor = _KeptSoftmax.apply(scores if mask is None else scores + mask)
    weights = F.dropout(weights, settings["dropout"], module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), None


class _KeptSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        weights = torch.softmax(scores, dim=-1)
        ctx.save_for_backward(scores, weights)
        return weights

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        _, weights = ctx.saved_tensors
        return torch.ops.aten._softmax_backward_data(gradient, weights, -1, weights.dtype)


_OLDER = {"clamped": _clamped, "kept": _kept}
