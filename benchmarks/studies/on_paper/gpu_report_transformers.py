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
        attention: ``eager``, ``sdpa``, or ``clamped``: the eager one of OPT as releases of 2024 have it.
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
        if self.attention == "clamped":
            transformers.AttentionInterface.register("clamped", _clamped)
            transformers.AttentionMaskInterface.register("clamped", eager_mask)
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
