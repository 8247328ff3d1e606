"""Sizes of published models of the Llama family and alike, for `transformers.LlamaConfig`."""

from __future__ import annotations

from typing import Any

LLAMA_3: dict[str, Any] = {"vocab_size": 128_256, "rope_theta": 500_000.0, "num_key_value_heads": 8}
SIZES: dict[str, dict[str, Any]] = {
    "1b": LLAMA_3
    | {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32}
    | {"tie_word_embeddings": True},
    "3b": LLAMA_3
    | {"hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28, "num_attention_heads": 24}
    | {"tie_word_embeddings": True},
    "8b": LLAMA_3
    | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
    "13b": {"vocab_size": 32_000, "hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40}
    | {"num_attention_heads": 40},
    "gemma2-2b": {"vocab_size": 256_000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26}
    | {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "final_logit_softcapping": 30.0}
    | {"tie_word_embeddings": True},
}
"""Llama 3.2 of 1 and 3 billion parameters, Llama 3 of 8, Llama 2 of 13, Gemma 2 of 2."""
