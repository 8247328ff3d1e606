"""The model of the examples on several processes: a small BERT that returns its loss."""

from __future__ import annotations

from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM


class SmallBert(nn.Module):
    """A BERT of two layers that guesses hidden words.

    Args:
        words: Size of the vocabulary.
    """

    def __init__(self, words: int) -> None:
        super().__init__()
        config = BertConfig(
            vocab_size=words,
            hidden_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=512,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        self.network = BertForMaskedLM(config)

    @property
    def layers(self) -> nn.ModuleList:
        """The blocks that FSDP2 shards one by one."""
        found: nn.ModuleList = self.network.bert.encoder.layer
        return found

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Mean loss over the hidden words; both arguments are of shape (batch, length)."""
        loss: Tensor = self.network(input_ids=tokens, labels=labels).loss
        return loss
