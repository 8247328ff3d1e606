"""Training steps whose memory others measured on GPUs: what was measured, and what is known to differ.

Each report names its source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from studies.on_paper.gpu_report_models import LargeVit, SmallGpt
from studies.on_paper.gpu_report_transformers import Transformers

GIB, GB, MIB, MB = 2**30, 10**9, 2**20, 10**6
GPT_SOURCE = "github.com/rasbt/LLMs-from-scratch ch05/10_llm-training-speed"
VIT_SOURCE = "github.com/rasbt/pytorch-memory-optim logs.md"
DOCS = "huggingface/transformers docs/source/en/model_doc"
NOTEBOOK = "huggingface/notebooks transformers_doc/en/performance.ipynb"
FORWARD_BACKWARD = "the loop of the table is assumed: 5 steps that are not counted, then one, without an optimizer"


@dataclass(frozen=True, slots=True)
class Report:
    """A measurement by others.

    Attributes:
        name: Its short name.
        source: Where it was published.
        device: The GPU; see `remat_compiler.devices.gpus`.
        bytes: What they measured.
        of: Which figure that is: ``allocated`` or ``reserved``.
        make: Makes the step.
        optimizer: Makes the optimizer.
        autocast: Type that autocast computes in.
        old_gradients: Whether gradients of the step before are alive during the forward.
        held_bytes: Outputs that are held through the optimizer's step and the next forward.
        expandable: Whether segments of the allocator expand.
        handles: Workspaces of cuBLAS that are part of it: the program's, and that of autograd's thread.
        differs: What is known to differ, or had to be assumed.
    """

    name: str
    source: str
    device: str
    bytes: float
    of: str
    make: Callable[[], tuple[Any, ...]]
    optimizer: Callable[[Any], Any] | None = None
    autocast: str | None = None
    old_gradients: bool = False
    held_bytes: int = 0
    expandable: bool = False
    handles: int = 2
    differs: str = ""


bf16, fp16, fp32 = torch.bfloat16, torch.float16, torch.float32
fused = partial(torch.optim.AdamW, fused=True)
one_by_one = partial(torch.optim.AdamW, foreach=False)
LAYERS_24 = (("hidden_size", 1024), ("num_hidden_layers", 24), ("num_attention_heads", 16), ("intermediate_size", 4096))
GPT2_LARGE = (("n_embd", 1280), ("n_layer", 36), ("n_head", 20))
PYTHIA_410M = (*LAYERS_24, ("vocab_size", 50304), ("max_position_embeddings", 2048))
OPT_350M = (*LAYERS_24[:3], ("ffn_dim", 4096), ("word_embed_proj_dim", 512), ("do_layer_norm_before", False))
CONTEXT = "nvidia-smi less the 1,343 MiB of the context that the same page measures; transformers and torch of 2022"


def _documented(
    model: tuple[str, str, str, str, tuple[tuple[str, Any], ...]], differs: str, *rows: tuple[str, int, int, float]
) -> Iterator[Report]:
    """The rows of a page of transformers' documentation, in float16.

    Args:
        model: Its name, its page, the GPU, and the kind and the settings of `Transformers`.
        differs: See `Report`.
        rows: Attention, sequences, tokens of each, and megabytes allocated.
    """
    name, page, device, kind, settings = model
    for attention, batch, length, size in rows:
        make = Transformers(kind, batch, length, attention, fp16, settings)
        title = f"{name} {attention} {batch}x{length}"
        yield Report(title, f"{DOCS}/{page}", device, size * MB, "allocated", make, differs=differs)


REPORTS = (
    Report("small-gpt fp32", GPT_SOURCE, "a100", 26.2617 * GIB, "reserved", SmallGpt(8, fp32), torch.optim.AdamW),
    Report("small-gpt bf16", GPT_SOURCE, "a100", 13.7871 * GIB, "reserved", SmallGpt(8, bf16), fused),
    Report("small-gpt fused layers", GPT_SOURCE, "a100", 11.5645 * GIB, "reserved", SmallGpt(8, bf16, True), fused),
    Report("small-gpt sdpa", GPT_SOURCE, "a100", 5.9004 * GIB, "reserved", SmallGpt(8, bf16, True, True), fused),
    Report(
        *("small-gpt compiled", GPT_SOURCE, "a100", 6.1875 * GIB, "reserved"),
        *(SmallGpt(8, bf16, True, True, compiled=True), fused),
    ),
    Report(
        *("small-gpt compiled, batch 32", GPT_SOURCE, "a100", 22.5078 * GIB, "reserved"),
        *(SmallGpt(32, bf16, True, True, 50304, True), fused),
    ),
    Report(
        *("vit-l fp32", VIT_SOURCE, "a100", 26.79 * GB, "reserved", LargeVit(64, classes=10), torch.optim.Adam),
        old_gradients=True,
        differs="the GPU is not named there",
    ),
    Report(
        *("vit-l autocast fp16", VIT_SOURCE, "a100", 18.21 * GB, "reserved"),
        *(LargeVit(64, classes=10), torch.optim.Adam, "fp16"),
        old_gradients=True,
        differs="the GPU is not named there; without its scaling of gradients",
    ),
    Report(
        *("vit-l bf16", VIT_SOURCE, "a100", 13.82 * GB, "reserved", LargeVit(64, bf16, 10), torch.optim.Adam),
        old_gradients=True,
        differs="the GPU is not named there",
    ),
    Report(
        *("vit-l one image", "pytorch/tutorials optimizer_step_in_backward_tutorial", "a100", 6 * GB, "allocated"),
        *(LargeVit(1, summed=True), torch.optim.Adam),
        differs="a rounded figure read off a picture; the GPU is not named",
    ),
    *_documented(
        ("gpt2-large", "gpt2.md", "rtx3090", "GPT2", GPT2_LARGE),
        f"RTX 3080 Ti there; {FORWARD_BACKWARD}; transformers of 2024 copied queries, keys and values",
        ("sdpa", 4, 1024, 14568.2),
        ("sdpa", 4, 512, 8102.64),
        ("eager", 1, 1024, 8682.26),
        ("eager", 4, 512, 12466.6),
    ),
    *_documented(
        ("pythia-410m", "gpt_neox.md", "rtx3090", "GPTNeoX", PYTHIA_410M),
        f"RTX 3080 Ti there; {FORWARD_BACKWARD}; transformers of 2024 copied more in each layer",
        ("sdpa", 4, 2048, 12705.1),
        ("sdpa", 1, 2048, 3882.01),
        ("eager", 1, 2048, 13484.1),
    ),
    *_documented(
        ("opt-350m", "opt.md", "l40s", "OPT", OPT_350M),
        f"{FORWARD_BACKWARD}; transformers of 2024, which copied queries, keys and values, and clamped eager scores",
        ("sdpa", 8, 1024, 8821.18),
        ("clamped", 8, 1024, 34175.763),
    ),
    Report(
        *("bert-large 4x512", NOTEBOOK, "v100", (14949 - 1343) * MIB, "reserved"),
        *(Transformers("Bert", 4, 512, "kept", fp32, LAYERS_24), one_by_one),
        differs=f"{CONTEXT}; gradients are zeros in place until torch 2.0, so that they are alive during the forward",
        old_gradients=True,
    ),
    Report(
        *("bert-large 1x512", NOTEBOOK, "v100", (8681 - 1343) * MIB, "reserved"),
        *(Transformers("Bert", 1, 512, "kept", fp32, LAYERS_24), one_by_one),
        differs=f"{CONTEXT}; four accumulated steps there",
        old_gradients=True,
    ),
    Report(
        *("bert-large 1x512 checkpointed", NOTEBOOK, "v100", (6775 - 1343) * MIB, "reserved"),
        *(Transformers("Bert", 1, 512, "kept", fp32, LAYERS_24, True), one_by_one),
        differs=f"{CONTEXT}; four accumulated steps there, so that gradients are alive during the forward",
        old_gradients=True,
    ),
)
