"""More training steps whose memory others measured on GPUs, by programs that anyone can read."""

from __future__ import annotations

import torch

from studies.on_paper.gpu_report_autoresearch import Autoresearch
from studies.on_paper.gpu_report_liger import LIGER
from studies.on_paper.gpu_report_lora import Lora, Sizes, trained
from studies.on_paper.gpu_report_modded import Modded, one_rank
from studies.on_paper.gpu_report_nano_vlm import NanoVlm
from studies.on_paper.gpu_report_steps import GB, MIB, Report

_VLM_SOURCE = "github.com/huggingface/nanoVLM README.md, eval/measure_vram.py"
_MODDED_SOURCE = "github.com/KellerJordan/modded-nanogpt records/121724_SparsifyEmbeds"
_VLM_MIB = {
    1: 4448.58,
    2: 4465.39,
    4: 4532.29,
    8: 5373.46,
    16: 7604.36,
    32: 12074.31,
    64: 20995.06,
    128: 38834.19,
    256: 74561.08,
}
_OLD_VLM_MIB = {
    1: 4439.02,
    2: 4461.05,
    4: 4515.27,
    8: 5062.60,
    16: 6989.32,
    32: 10880.09,
    64: 18584.00,
    128: 34043.34,
    256: 64944.37,
}
_LORA_SOURCE = "github.com/Lightning-AI/litgpt tutorials/resource-tables.md, finetune/lora.py"
_LORA = {
    "llama2-7b": (Sizes(32, 4096, 32, 11008, 32000, gated=True), 1304, {1: 21.30, 2: 29.07}),
    "stablelm-3b": (Sizes(16, 4096, 32, 16384, 50688, turned=0.25), 1034, {1: 9.69, 2: 12.10, 4: 16.92}),
    "phi-1.5": (
        Sizes(24, 2048, 32, 8192, 51200, turned=0.5, one_norm=True, head_bias=True),
        *(1044, {1: 4.82, 2: 6.76, 4: 10.68}),
    ),
}
"""Sizes, tokens of the longest sequence, and gigabytes by size of the micro-batch."""


def _lora(name: str, sizes: Sizes, batch: int, length: int, gb: float) -> Report:
    return Report(
        *(f"litgpt LoRA {name} {batch}", _LORA_SOURCE, "a100-40", gb * GB, "allocated"),
        *(Lora(sizes, batch, length), trained),
    )


def _nano_vlm(name: str, step: NanoVlm, mib: float) -> Report:
    return Report(
        *(f"{name} {step.batch}", _VLM_SOURCE, "h100", mib * MIB, "allocated", step, torch.optim.AdamW, "bf16"),
        held_bytes=step.logits_bytes,
    )


READ = (
    *(_nano_vlm("nanoVLM", NanoVlm(batch), mib) for batch, mib in _VLM_MIB.items()),
    *(_nano_vlm("nanoVLM of May", NanoVlm(batch, 14, False), mib) for batch, mib in _OLD_VLM_MIB.items()),
    *(
        _lora(name, sizes, batch, length, gb)
        for name, (sizes, length, points) in _LORA.items()
        for batch, gb in points.items()
    ),
    *LIGER,
    Report(
        *("autoresearch", "github.com/karpathy/autoresearch README.md, train.py", "h100", 45060.2 * MIB, "allocated"),
        *(Autoresearch(128), torch.optim.AdamW, "bf16"),
        old_gradients=True,
        expandable=True,
        differs="FlashAttention 3 with windows there, and Muon, which keeps one moment of matrices, not two",
    ),
    *(
        Report(
            *(f"modded-nanogpt {of}", _MODDED_SOURCE, "h100", mib * MIB, of, Modded(65536), one_rank),
            expandable=True,
            differs="seven other ranks there, and Muon, of which the moments are here alone",
        )
        for of, mib in (("allocated", 31361), ("reserved", 36734))
    ),
)
