"""Two sizes that change at once: batch and length, height and width; what is foreseen is what is measured."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dry_run.steps import peak_of
from end_to_end.compiling import compile_with
from end_to_end.test_changing_sizes import AT_ONCE, WIDTH, Encoder, differing, results
from remat_compiler.dynamic_shapes.dispatch import Dispatch
from remat_compiler.dynamic_shapes.variant_maker import VariantMaker
from remat_compiler.errors import InfeasibleBudget


class Net(nn.Module):
    """Convolutions, whose workspace is another one at each size, and neither more nor less for larger ones."""

    def __init__(self) -> None:
        super().__init__()
        widths = [(3, 8, 1), (8, 16, 2), (16, 16, 1), (16, 32, 2)]
        self.convolutions = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1, stride=s) for a, b, s in widths)
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for _, b, _ in widths)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        for convolution, norm in zip(self.convolutions, self.norms):
            x = F.relu(norm(convolution(x)))
        x = F.dropout(F.adaptive_avg_pool2d(x, 1).flatten(1), 0.1, self.training)
        return self.head(x).square().mean()


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[int, int], tuple[int, ...]], tuple[int, int], Any]] = {
    "batch and length": (Encoder, lambda a, b: (a, b, WIDTH), (0, 1), ((6, 50), (2, 9), (8, 80))),
    "height and width": (Net, lambda a, b: (2, 3, a, b), (2, 3), ((48, 48), (16, 64), (16, 64))),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "estimator"), [*((case, "symbolic") for case in CASES), ("height and width", "quadratic")]
)
def test_what_is_foreseen_is_measured(
    case: str, estimator: str, made: list[Dispatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VariantMaker, "pays", AT_ONCE)
    build, shape, dims, (fits, first, second) = CASES[case]
    model, rng = build(), random.Random(1)

    def batch(a: int, b: int) -> Tensor:
        x = torch.randn(shape(a, b))
        for dim in dims:
            torch._dynamo.mark_dynamic(x, dim)
        return x

    x = batch(*fits)
    budget = peak_of(lambda: results(model, model, x))
    options = {
        "inner": "eager",
        "estimator": estimator,
        "memory_budget": budget,
        "on_infeasible": "error",
        "max_slowdown": None,
    }
    compiled = compile_with(model, None, **options)
    refused: list[int] = []
    slow = 0
    for seed in range(14):
        x = batch(rng.randint(*first), rng.randint(*second))
        try:
            assert differing(model, compiled, x, seed) == []
        except InfeasibleBudget as error:
            refused.append(error.smallest_peak_bytes)
            continue
        model.zero_grad(set_to_none=True)
        measured = peak_of(lambda x=x: compiled(x).backward())  # type: ignore[misc]
        (one,) = made
        (use,) = [use for use in one.uses if set(use.sizes) == {x.shape[dim] for dim in dims}]
        if estimator == "symbolic":
            assert measured == use.variant.needed_bytes(use.sizes, one.allowance)
        assert measured <= budget
        slow += use.variant.added > 0
    assert len(refused) < 4
    assert min(refused, default=budget + 1) > budget
    assert slow
