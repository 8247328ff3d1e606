"""Losses in chunks at sizes that change, through ``torch.compile``: eager's results, exact peaks at every length."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import remat_compiler
from dry_run.steps import peak_of
from end_to_end.compiling import compile_with
from remat_compiler.dynamic_shapes.dispatch import Dispatch
from remat_compiler.report.summary import summary_text

pytestmark = [pytest.mark.usefixtures("compiles_anew"), pytest.mark.usual_effort]

CLASSES, WIDTH = 2048, 32


class Language(nn.Module):
    """A layer, and a tied head over many classes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, WIDTH)
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x = x + F.gelu(self.layer(x))
        return F.cross_entropy((x @ self.embedding.weight.T).flatten(0, 1), targets.flatten())


def batch(rows: int, length: int) -> tuple[Tensor, Tensor]:
    """Tokens, and those that follow them, of which the first are ignored."""
    tokens = torch.arange(rows * length).view(rows, length) * 7 % CLASSES
    targets = (tokens + 7) % CLASSES
    targets[0, 0] = -100
    return tokens, targets


def assert_as_eager(model: nn.Module, compiled: nn.Module, given: tuple[Tensor, Tensor]) -> None:
    eager = copy.deepcopy(model)
    model.zero_grad()
    for called in (eager, compiled):
        called(*given).backward()
    for one, other in zip(model.parameters(), eager.parameters()):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5)


def assert_within(model: nn.Module, compiled: nn.Module, given: tuple[Tensor, Tensor], dispatch: Dispatch) -> None:
    """Whether a step takes what was foretold, and no more than the budget."""
    model.zero_grad(set_to_none=True)
    peak = peak_of(lambda: compiled(*given).backward())
    use = dispatch.latest
    assert use is not None
    assert peak == use.variant.needed_bytes(use.sizes, dispatch.allowance)
    assert peak <= dispatch.limit_bytes


@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_one_budget_below_the_logits_is_kept_at_every_length(inner: str, made: list[Dispatch]) -> None:
    torch.manual_seed(0)
    model = Language()
    longest = batch(5, 140)
    budget = longest[0].numel() * CLASSES * 4 * 2 // 3
    compiled = compile_with(model, True, memory_budget=budget, inner=inner, on_infeasible="error")
    for given in (batch(2, 9), longest, batch(3, 50), batch(4, 2), batch(2, 3)):
        assert_as_eager(model, compiled, given)
        assert_within(model, compiled, given, made[0])
    assert len(made) == 1, "Dynamo compiled again"
    told = summary_text(remat_compiler.reports()[-1])
    assert "loss in " in told
    assert "(test_chunks_at_changing_sizes.py:" in told


def test_chunks_of_no_rows(made: list[Dispatch]) -> None:
    torch.manual_seed(0)
    model = Language()
    compiled = compile_with(model, True, memory_budget="1GiB", chunks=16)
    for given in (batch(5, 40), batch(2, 2), batch(3, 2), batch(2, 9)):
        assert_as_eager(model, compiled, given)
        assert_within(model, compiled, given, made[0])
    assert "loss in 16 chunks" in summary_text(remat_compiler.reports()[0])
    assert len(made) == 1, "Dynamo compiled again"


def test_left_whole_where_nothing_may_be_cut(made: list[Dispatch]) -> None:
    torch.manual_seed(0)
    model = Language()
    compiled = compile_with(model, True, memory_budget="1GiB", chunks="never")
    assert_as_eager(model, compiled, batch(5, 40))
    assert "loss in " not in summary_text(remat_compiler.reports()[0])
