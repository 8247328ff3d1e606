"""The questions of `run.py`: each a function that notes rows; one runs in a process of its own."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._functorch import config as functorch_config
from torch.utils.checkpoint import checkpoint

import remat_compiler
from gpu.asked import NEAR, Asked, Step, distance, first_backward, held, planned, predicted, stock
from gpu.chunked import chunked_lengths, chunks
from gpu.drawn import drawn
from gpu.models import Model, build
from gpu.training import TrainingStep, accumulated, large, updates
from instruments.measure import gradients, step_times
from remat_compiler.costs.rates import figures_of
from remat_compiler.devices.allocator_setting import segments_expand
from remat_compiler.report.figures import latest_step

ROOT = Path(__file__).resolve().parents[2]


def card(asked: Asked) -> None:
    """Versions, and how fast the device is by its calibration."""
    with asked.row("versions") as row:
        row.status = "told"
        row.figures |= {"torch": torch.__version__, "python": sys.version.split()[0], "cuda": torch.version.cuda}
        if asked.cuda:
            properties = torch.cuda.get_device_properties(0)
            row.figures |= {"card": properties.name, "memory": properties.total_memory}
    with asked.row("rates") as row:
        row.status = "told"
        row.figures |= figures_of(asked.device, None) or {}


def budgets(asked: Asked, name: str, *fractions: float | str) -> None:
    """A model under parts of the stock compiler's peak, in bytes, and at its smallest peak."""
    model, right, noise, peak = build(name, asked.device), [], 0.0, 0
    with asked.row("stock") as row:
        row.status, step = "told", asked.step(model, stock(model.module))
        step()
        right = [step(), *gradients(model.module)]
        noise = distance([step(), *gradients(model.module)], right)
        peak = asked.peak_bytes(step)
        row.figures |= {"measured": peak, "noise": noise}
    for fraction in fractions:
        with asked.row(str(fraction)) as row:
            budget = fraction if isinstance(fraction, str) else int(fraction * peak)
            step = asked.step(model, planned(model.module, budget, max_slowdown=None))
            first = first_backward(asked, step)
            apart = distance([step(), *gradients(model.module)], right)
            row.expect(apart <= max(NEAR, 2 * noise), f"{apart:.1e} off stock")
            held(asked, row, step, budget)
            row.figures |= {"apart": apart, "first_backward": first}


def rivals(asked: Asked, name: str, knob: float) -> None:
    """Times beside torch's own budget and checkpointed blocks, in turns, remat's budget being the peak of each."""
    model, steps, peaks = build(name, asked.device), dict[str, Step](), dict[str, int]()

    def add(way: str, on: Model, call: Any, budget: int | None = None) -> None:
        with asked.row(way) as row:
            step = asked.step(on, call)
            step()
            peaks[way] = asked.peak_bytes(step)
            row.figures["measured"] = peaks[way]
            row.status = "told" if budget is None else "ok"
            if budget is not None:
                held(asked, row, step, budget)
            steps[way] = step

    add("stock", model, stock(model.module))
    with functorch_config.patch(activation_memory_budget=knob):
        add("knob", model, stock(model.module))
    again = model.checkpointed()
    add("checkpointed", again, stock(again.module))
    for way in ("knob", "checkpointed"):
        add(f"remat at {way}", model, planned(model.module, peaks[way], max_slowdown=None), peaks[way])
    asked.quiet()
    with asked.row("times") as row:
        times = step_times(steps, 20)
        row.figures |= {way: [round(one.wall_ns / 1e6, 3), peaks[way]] for way, one in times.items()}
        for way in ("knob", "checkpointed"):
            ratio = times[f"remat at {way}"].wall_ns / times[way].wall_ns
            row.expect(ratio <= 1.02, f"{ratio:.3f} times as long as {way}")


def masks(asked: Asked) -> None:
    """Programs linear in x: the product of gradient and x is the sum, if the backward saw the forward's dropout."""
    shape = (4, 8, 256, 64)
    weights = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(asked.device)
    for kind, near in ((torch.float32, 1e-3), (torch.bfloat16, 5e-2)):
        for within, region in ((0.0, False), (0.1, False), (0.1, True)):
            zeros, x = weights.to(kind) * 0, nn.Parameter(weights.to(kind))

            def block(y: Tensor, zeros: Tensor = zeros, within: float = within) -> Tensor:
                return F.dropout(F.scaled_dot_product_attention(zeros, zeros, y, dropout_p=within) * 16, 0.1)

            def total(x: Tensor, block: Any = block, region: bool = region) -> tuple[Tensor, Tensor]:
                y = x
                for _ in range(4):
                    y = checkpoint(block, y, use_reentrant=False) if region else block(y)
                terms = y.float() * weights
                return terms.sum(), terms.detach()

            for budget in (1.0, "min"):
                with asked.row(f"{kind}, {within} in attention, checkpointed {region}, {budget}") as row:
                    torch._dynamo.reset()
                    call = planned(total, budget, on_infeasible="min")
                    loss, terms = call(x)
                    (gradient,) = torch.autograd.grad(loss, x)
                    product = float((gradient.double() * x.double()).sum())
                    apart = abs(product - float(loss)) / float(terms.norm())
                    row.figures["apart"] = apart
                    row.expect(apart < near, "the backward saw other masks")


def lengths(asked: Asked) -> None:
    """Ten lengths under one budget in bytes."""
    longest = 64 if not asked.cuda else 1024
    model = build("gpt2", asked.device)
    step = asked.step(model, stock(model.module))
    step()
    budget = int(0.6 * asked.peak_bytes(step))
    call = planned(model.module, budget, dynamic=None)
    for part in (0.5, 1.0, 0.36, 0.43, 0.23, 0.85, 0.52, 0.6, 0.97, 0.13):
        with asked.row(f"length {int(part * longest)}") as row:
            inputs = {key: value[:, : int(part * longest)].contiguous() for key, value in model.inputs.items()}
            step = asked.step(Model(model.module, inputs, model.autocast), call)
            step()
            measured = asked.peak_bytes(step)
            row.figures |= {"measured": measured, "budget": budget, "compiled": remat_compiler.stats().compilations}
            row.expect(measured <= budget, f"{measured - budget:+,} B beside the budget")


def moves(asked: Asked) -> None:
    """The same budget with values moved to the host and without: peaks, results, times, and a trace of one step."""
    model, steps, right = build("gpt2", asked.device), dict[str, Step](), list[Tensor]()
    step = asked.step(model, stock(model.module))
    step()
    right, budget = [step(), *gradients(model.module)], int(0.6 * asked.peak_bytes(step))
    steps["stock"] = step
    moving: dict[str, Any] = {"offload_budget": "32GiB", "offload_tier": "host"}
    for way, more in (("recomputed", {}), ("moved", moving)):
        with asked.row(way) as row:
            step = steps[way] = asked.step(model, planned(model.module, budget, max_slowdown=None, **more))
            for _ in range(3):
                apart = distance([step(), *gradients(model.module)], right)
                row.expect(apart <= NEAR, f"{apart:.1e} off stock")
            held(asked, row, step, budget)
            row.figures["moved"] = sum(one.offloaded_bytes for one in latest_step(remat_compiler.reports()))
    asked.quiet()
    with asked.row("times") as row:
        row.status = "told"
        row.figures |= {way: round(one.wall_ns / 1e6, 3) for way, one in step_times(steps, 15).items()}
    asked.trace(steps)


def reserved(asked: Asked, adam: bool, early: bool = False) -> None:
    """What the allocator reserves, said and measured, with the segments that the environment asks for.

    Args:
        asked: What is asked.
        adam: Whether AdamW steps, too.
        early: Whether a product on autograd's thread comes first, so that its workspace lies below all else.
    """
    if early:
        x = torch.ones(16, 16, device=asked.device, requires_grad=True)
        (x @ x).sum().backward()
    model = build("gpt2", asked.device)
    ways: tuple[dict[str, Any], ...] = ({}, {"layout": "planned"}, {"budget_of": "reserved"})
    for more in ways:
        with asked.row(str(more or "plain")) as row:
            call = planned(model.module, 0.7, on_infeasible="min", **more)
            step = asked.step(model, call)
            if adam:
                # Its state is made between the first step and the second, among what the first one left.
                step = TrainingStep(asked, model, call, within=False)
            step()
            (report,) = latest_step(remat_compiler.reports())
            if not asked.cuda:
                row.status = "told"
                continue
            step.release()
            torch.cuda.empty_cache()
            before = torch.cuda.memory_reserved()
            torch.cuda.reset_peak_memory_stats()
            for _ in range(3):
                step()
            measured = torch.cuda.max_memory_reserved() - before
            said = report.expandable_bytes if segments_expand() else report.reserved_bytes
            row.figures |= {"measured": measured, "said": said}
            row.expect(not said or abs(measured / said - 1) < 0.05, "more than 5 % beside what was said")


def auto(asked: Asked) -> None:
    """`auto` where something else has most of the card: four steps with AdamW."""
    model = build("llama", asked.device)
    step = asked.step(model, stock(model.module))
    step()
    peak = asked.peak_bytes(step)
    with asked.row("auto") as row:
        if not asked.cuda:
            row.status = "told"
            return
        parameters = sum(one.nbytes for one in model.module.parameters())
        free, total = torch.cuda.mem_get_info()
        others = torch.empty(free - int(0.05 * total + 0.85 * peak) - 2 * parameters, dtype=torch.uint8, device="cuda")
        step = asked.step(model, planned(model.module, "auto"))
        optimizer = torch.optim.AdamW(model.module.parameters(), fused=True)
        for _ in range(4):
            step()
            optimizer.step()
        row.figures |= {"others": others.nbytes, **predicted()}


def paper(asked: Asked) -> None:
    """The step on paper against the card."""
    command = [sys.executable, "-c", "from remat_compiler.cli.main import main; raise SystemExit(main())", "fit"]
    file = asked.folder / "validation.json"

    def fit(kept: Path, *step: str, **variables: str) -> subprocess.CompletedProcess[str]:
        where = ["--validate", str(kept)] if asked.cuda else ["--device", "h100"]
        environment = os.environ | variables
        done = subprocess.run([*command, *step, *where], capture_output=True, text=True, env=environment, check=False)
        print(done.stdout, done.stderr)
        return done

    with asked.row("gpt2") as row:
        done = fit(file, str(ROOT / "examples/fit_gpt2.py:make"), "--batch", "8", "--autocast", "bf16")
        row.expect(done.returncode == 0, done.stderr[-200:])
        if file.exists():
            record = json.loads(file.read_text())
            for key in ("forward_bytes", "backward_bytes", "update_bytes", "allocated_bytes", "reserved_bytes"):
                row.figures[key] = [record["paper"][key], record["real"][key]]
            row.expect(record["same_code"], "other code on the card")
    with asked.row("each compilation") as row:
        # What is said of them tells where the card compiles more than paper.
        row.status, model = "told", f"{ROOT}/tests/fitting/paper_models.py:language"
        kept = asked.folder / "validation-language.json"
        fit(kept, model, "--batch", "16", "--budget", "0.7", TORCH_LOGS="+remat_compiler")


def tests(asked: Asked) -> None:
    """The tests marked `gpu`, a process for each file."""
    files = [str(one) for one in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in one.read_text("utf-8")]
    options = "-q --tb=short -p no:cacheprovider -m gpu --durations=8"
    command = [sys.executable, "-m", "pytest", *options.split()]
    running = [subprocess.Popen([*command, one], stdout=-1, stderr=-2, text=True, cwd=ROOT) for one in files]
    for file, process in zip(files, running, strict=True):
        with asked.row(file.removeprefix(str(ROOT / "tests"))) as row:
            output = process.communicate()[0]
            print(output, flush=True)
            row.figures["last"] = output.strip().splitlines()[-1:]
            row.expect(process.returncode == 0, "failed")


HERE = (card, budgets, rivals, masks, lengths, moves, reserved, auto, paper, tests)
FUNCTIONS = {one.__name__: one for one in (*HERE, accumulated, chunked_lengths, chunks, drawn, large, updates)}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("asked", type=json.loads)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--folder", type=Path, required=True)
    chosen = parser.parse_args()
    function, *arguments = chosen.asked
    FUNCTIONS[function](Asked(chosen.name, chosen.device, chosen.folder), *arguments)
