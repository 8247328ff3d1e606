"""Losses in chunks through ``torch.compile``: what eager gives, at foretold peaks below the floor of the whole."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import remat_compiler
from end_to_end.compiling import compile_with, differences_from_eager
from instruments.measure import measure_step, train_step
from remat_compiler.report.plan_report import PlanReport
from remat_compiler.report.summary import summary_text

pytestmark = [pytest.mark.usefixtures("compiles_anew"), pytest.mark.usual_effort]

CLASSES, WIDTH, ROWS = 2048, 32, 255


class Language(nn.Module):
    """A layer, and a tied head over many classes; each row predicts the next."""

    def __init__(self, *, reads_a_row: bool = False) -> None:
        super().__init__()
        self.reads_a_row = reads_a_row
        self.embedding = nn.Embedding(CLASSES, WIDTH)
        self.layer, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x = self.norm(x + F.gelu(self.layer(x)))
        logits = x[:-1] @ self.embedding.weight.T
        loss = F.cross_entropy(logits, tokens[1:])
        return loss + logits[-1].mean() if self.reads_a_row else loss


class Shifted(Language):
    """Logits of all tokens of several sequences, of which each but the last predicts the next one."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        logits = self.norm(x + F.gelu(self.layer(x))) @ self.embedding.weight.T
        shifted = logits[..., :-1, :].contiguous()
        return F.cross_entropy(shifted.view(-1, CLASSES), tokens[..., 1:].contiguous().view(-1))


TOKENS = torch.arange(ROWS + 1) * 7 % CLASSES
LOGITS_BYTES = ROWS * CLASSES * 4


def measured(chunks: int | str, inner: str, budget: float | str) -> tuple[int, PlanReport]:
    """Peak of a step, and the report."""
    torch.manual_seed(0)
    remat_compiler.clear_reports()
    step = train_step(compile_with(Language(), memory_budget=budget, inner=inner, chunks=chunks), {"tokens": TOKENS})
    return measure_step(step).peak_bytes, remat_compiler.reports()[-1]


@pytest.mark.parametrize("budget", [1.0, "min"])
@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_peaks_are_lower_and_as_foretold(inner: str, budget: float | str) -> None:
    whole_bytes, whole = measured("never", inner, budget)
    peak_bytes, report = measured(8, inner, budget)

    assert (whole.peak_bytes, report.peak_bytes) == (whole_bytes, peak_bytes)
    assert peak_bytes < whole_bytes
    if budget == "min":
        # Below what nothing reaches that has the logits whole.
        assert peak_bytes < LOGITS_BYTES < whole.floor.peak_bytes
        assert report.floor.peak_bytes < LOGITS_BYTES / 2
    assert "loss in 8 chunks (test_chunks.py:" in summary_text(report)
    assert "): 2.0 MiB → 256.0 KiB\n" in summary_text(report)
    assert " chunks (" not in summary_text(whole)


@pytest.mark.parametrize("budget", [1.0, 0.5, "min"])
@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_equal_to_eager_but_for_rounding(inner: str, budget: float | str) -> None:
    options = {"memory_budget": budget, "inner": inner, "chunks": 5}
    assert differences_from_eager(Language(), (TOKENS,), tolerance=1e-5, **options) == []
    assert "in 5 chunks" in summary_text(remat_compiler.reports()[-1])


def test_a_backward_that_runs_twice() -> None:
    torch.manual_seed(0)
    model = Language()
    compiled = compile_with(model, memory_budget="min", chunks=4)
    (loss := compiled(TOKENS)).backward(retain_graph=True)
    once = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    loss.backward()
    for parameter, gradient in zip(model.parameters(), once):
        torch.testing.assert_close(parameter.grad, 2 * gradient)


def test_what_cannot_be_cut_is_told() -> None:
    remat_compiler.clear_reports()
    model = Language(reads_a_row=True)
    assert differences_from_eager(model, (TOKENS,), tolerance=1e-5, chunks=4, memory_budget=1.0) == []
    assert "nothing is computed in chunks" in summary_text(remat_compiler.reports()[-1])


@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_as_planned_the_loss_is_cut_only_where_the_budget_asks_for_it(inner: str) -> None:
    whole_bytes, whole = measured("never", inner, 1.0)
    peak_bytes, kept = measured("auto", inner, whole_bytes)
    assert (peak_bytes, "loss in " in summary_text(kept)) == (whole_bytes, False)
    # Below what any plan of the whole reaches.
    budget = whole.floor.peak_bytes // 2
    peak_bytes, cut = measured("auto", inner, budget)
    assert cut.peak_bytes == peak_bytes <= budget
    assert all(text in summary_text(cut) for text in ("loss in ", "(test_chunks.py:"))
    # Without a budget it would be whole.
    assert cut.peak_before_bytes > LOGITS_BYTES


@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_gradients_add_up_over_micro_batches(inner: str) -> None:
    torch.manual_seed(0)
    model = Language()
    expected, compiled = copy.deepcopy(model), compile_with(model, memory_budget="min", inner=inner, chunks=4)
    for shift in range(3):
        compiled((TOKENS + shift) % CLASSES).backward()
        expected((TOKENS + shift) % CLASSES).backward()
    assert "in 4 chunks" in summary_text(remat_compiler.reports()[-1])
    for one, other in zip(model.parameters(), expected.parameters()):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_two_sequences_whose_logits_are_shifted_are_cut_anywhere(inner: str) -> None:
    sequences = TOKENS.view(2, -1)
    torch.manual_seed(0)
    model = compile_with(Shifted(), memory_budget=LOGITS_BYTES // 2, inner=inner, chunks="auto")
    peak_bytes = measure_step(train_step(model, {"tokens": sequences})).peak_bytes
    report = remat_compiler.reports()[-1]

    assert report.peak_bytes == peak_bytes <= LOGITS_BYTES // 2
    assert report.chunked[0].chunks >= 16
    options = {"memory_budget": "min", "inner": inner, "chunks": 5}
    assert differences_from_eager(Shifted(), (sequences,), tolerance=1e-5, **options) == []
    assert "in 5 chunks" in summary_text(remat_compiler.reports()[-1])


class Pixels(nn.Module):
    """A class for each pixel of an image, from scores of a small image that are enlarged."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(3, 8, 4, 4), nn.Conv2d(8, 20, 1)

    def forward(self, images: Tensor, targets: Tensor) -> Tensor:
        scores = self.head(F.gelu(self.body(images)))
        enlarged = F.interpolate(scores, size=targets.shape[1:], mode="bilinear")
        return F.cross_entropy(enlarged, targets, ignore_index=19)


class Capped(Language):
    """Logits between bounds, whose loops Inductor computes once for all that read them."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        logits = self.norm(x + F.gelu(self.layer(x)))[:-1] @ self.embedding.weight.T
        return F.cross_entropy(30 * torch.tanh(logits / 30), tokens[1:])


IMAGES = {"images": torch.randn(8, 3, 32, 32), "targets": torch.arange(8 * 32 * 32).view(8, 32, 32) * 7 % 20}


@pytest.mark.parametrize("inner", ["eager", "inductor"])
@pytest.mark.parametrize(("make", "given"), [(Pixels, IMAGES), (Capped, {"tokens": TOKENS})], ids=["pixels", "capped"])
def test_what_is_normalised_is_not_held_for_other_chunks(
    make: Callable[[], nn.Module], given: dict[str, Tensor], inner: str
) -> None:
    peaks = {}
    for chunks in ("never", "auto"):
        torch.manual_seed(0)
        model = compile_with(make(), memory_budget="min", inner=inner, chunks=chunks)
        peaks[chunks] = measure_step(train_step(model, given)).peak_bytes
        report = remat_compiler.reports()[-1]
        assert report.peak_bytes == peaks[chunks]
    assert "loss in " in summary_text(report)
    assert peaks["auto"] < peaks["never"] / 2
    options = {"memory_budget": "min", "inner": inner, "chunks": 4}
    assert differences_from_eager(make(), tuple(given.values()), tolerance=1e-5, **options) == []
