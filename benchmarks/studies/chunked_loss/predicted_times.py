"""Predicted and measured time of steps in chunks: language models of `transformers` with wide heads, as they are.

    python -m studies.chunked_loss.predicted_times [--models gpt2 llama t5 …] [--budgets 0.4 min] [--inners eager]

Each model is compiled without a budget and under each budget.  Times are CPU seconds of a step, medians of rounds in
which all ways of one model take turns.  *Predicted* is what the report says of the step; *ratio* is a step under the
budget over the step without one.
"""

from __future__ import annotations

import argparse
import os
import statistics
from typing import Any

import torch
from torch import Tensor, nn

import remat_compiler
from instruments.measure import StepTimes, TrainStep, measure_step, step_times, train_step
from remat_compiler.progress import progress
from remat_compiler.report import PlanReport

CAUSAL = ("gpt2", "llama", "mistral", "qwen2", "gemma2", "gpt_neox", "opt", "phi", "stablelm")
MODELS = (*CAUSAL, "t5")
VOCABULARY, WIDTH, LAYERS, BATCH, LENGTH, ROUNDS = 8192, 128, 3, 8, 128, 15

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim"), WIDTH),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers"), LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "num_key_value_heads"), 4),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "d_ff"), 4 * WIDTH),
    **dict.fromkeys(("head_dim", "d_kv"), WIDTH // 4),
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    **dict.fromkeys(("dropout", "dropout_rate", "attention_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
}
"""What a configuration is given of these, if it has the name."""


class Loss(nn.Module):
    """The model with its own loss of all tokens."""

    def __init__(self, name: str) -> None:
        super().__init__()
        import transformers

        torch.manual_seed(0)
        plain = transformers.AutoConfig.for_model(name)
        known = {key: value for key, value in SIZES.items() if hasattr(plain, key)}
        config = transformers.AutoConfig.for_model(name, **known)
        config.decoder_start_token_id = 0
        kind = transformers.AutoModelForCausalLM if name in CAUSAL else transformers.AutoModelForSeq2SeqLM
        self.model = kind.from_config(config).train()
        # GPT-2's model warns of not having one, which breaks the graph between the head and the loss.
        self.model.loss_type = "ForCausalLM"

    def forward(self, input_ids: Tensor) -> Tensor:
        """A scalar."""
        return self.model(input_ids=input_ids, labels=input_ids).loss


def way(name: str, inner: str, budget: Any) -> tuple[TrainStep, PlanReport]:
    """The model compiled under a budget, and the report of it."""
    remat_compiler.clear_reports()
    options = {"memory_budget": budget, "inner": inner, "max_slowdown": None}
    options |= {"chunks": "never"} if budget == 1.0 else {}
    tokens = torch.randint(3, VOCABULARY, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))
    step = train_step(torch.compile(Loss(name), backend="remat", options=options), {"input_ids": tokens})
    step()
    return step, remat_compiler.reports()[-1]


def row(
    name: str,
    inner: str,
    budget: Any,
    report: PlanReport,
    peak_bytes: int,
    whole: StepTimes,
    in_chunks: StepTimes,
) -> tuple[str, float]:
    """A row of the table, and the error of the predicted ratio in percent."""
    predicted, measured = 1 + report.added_ns / report.step_ns, in_chunks.cpu_ns / whole.cpu_ns
    error = 100 * (predicted / measured - 1)
    times = f"{(report.step_ns + report.added_ns) / 1e6:.0f} → {in_chunks.cpu_ns / 1e6:.0f} ms"
    cells = (inner, name, str(budget), f"{report.peak_before_bytes / 1e6:.1f} → {peak_bytes / 1e6:.1f} MB", times)
    ratios = (f"{predicted:.2f}", f"{measured:.2f}", f"{error:+.0f} %", ", ".join(map(str, report.chunked)))
    return f"| {' | '.join((*cells, *ratios))} |", error


def main() -> None:
    """Print a table of Markdown, and the median of the errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--budgets", nargs="*", default=["0.4", "min"])
    parser.add_argument("--inners", nargs="*", default=["eager"])
    given = parser.parse_args()
    os.environ["REMAT_DISABLE_CACHE"] = "1"
    torch.set_num_threads(1)
    print(
        "| inner | model | budget | peak | step: predicted → measured | ratio predicted | measured | error | chunks |"
    )
    print("|---|---|--:|--:|--:|--:|--:|--:|---|", flush=True)
    errors = []
    with progress("measuring", len(given.inners) * len(given.models)) as shown:
        for inner in given.inners:
            for name in given.models:
                torch._dynamo.reset()
                asked = [1.0, *(budget if budget == "min" else float(budget) for budget in given.budgets)]
                ways = {budget: way(name, inner, budget) for budget in asked}
                peaks = {budget: measure_step(step).peak_bytes for budget, (step, _) in ways.items()}
                times = step_times({str(budget): step for budget, (step, _) in ways.items()}, ROUNDS)
                for budget in asked[1:]:
                    report = ways[budget][1]
                    text, error = row(name, inner, budget, report, peaks[budget], times["1.0"], times[str(budget)])
                    print(text, flush=True)
                    errors += [abs(error)] if report.chunked else []
                shown.advance()
    print(f"\nmedian of the errors of {len(errors)} steps in chunks: {statistics.median(errors):.1f} %")


if __name__ == "__main__":
    main()
