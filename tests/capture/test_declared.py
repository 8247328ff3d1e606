"""Operators that users declare free of side effects: recomputed from then on, and never what would change results."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import remat_compiler
from remat_compiler import allow_recompute, forbid_recompute
from remat_compiler.backend import remat
from remat_compiler.capture.declared import declared_names
from remat_compiler.capture.operators import traits_of
from remat_compiler.compilation.graph_key import plan_key
from remat_compiler.errors import OptionError
from remat_compiler.ir.graph import Trait
from remat_compiler.ir.plan import Decision
from remat_compiler.options import RematOptions
from remat_compiler.partition.partitioner import RematPartitioner
from remat_compiler.partition.request import PartitionRequest

runs: list[int] = []


@torch.library.custom_op("remat_declared::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    runs.append(x.numel())
    return x * 2


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


twice.register_autograd(lambda ctx, grad: grad * 2)


@torch.library.custom_op("remat_declared::add_one_", mutates_args=("x",))
def add_one_(x: Tensor) -> None:
    x.add_(1)


@torch.library.custom_op("remat_declared::noise", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def noise(x: Tensor) -> Tensor:
    return torch.randn_like(x)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(32, 32) for _ in range(5)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(twice(torch.tanh(layer(x))))
        return x.square().sum()


@pytest.fixture(autouse=True)
def anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path))
    before = declared_names()
    yield
    for name in set(declared_names()) - set(before):
        forbid_recompute(name)


def trained(module: nn.Module, x: Tensor, budget: object) -> tuple[list[Tensor], int]:
    """Gradients of a planned step, and how often the operator ran in it."""
    torch._dynamo.reset()
    remat_compiler.clear_reports()
    options = {"memory_budget": budget, "inner": "eager", "max_slowdown": None, "on_infeasible": "min"}
    compiled = torch.compile(module, backend=remat, options=options, dynamic=False)
    compiled(x).backward()
    module.zero_grad(set_to_none=True)
    runs.clear()
    compiled(x).backward()
    return [p.grad.clone() for p in module.parameters() if p.grad is not None], len(runs)


def test_an_operator_is_saved_before_it_is_declared_recomputed_after_and_saved_when_that_is_taken_back() -> None:
    module, x = Model(), torch.randn(4096, 32)
    module(x).backward()
    expected = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    counts, peaks = [], []
    for change in (lambda op: None, allow_recompute, forbid_recompute):
        change(twice)
        found, count = trained(module, x, "min")
        (report,) = remat_compiler.reports()
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
        recomputed = [d.made_by.target for d in report.decisions if d.decision is Decision.RECOMPUTE]
        assert any("remat_declared" in target for target in recomputed) == (change is allow_recompute)
        counts.append(count)
        peaks.append(report.peak_bytes)
    assert counts[0] == counts[2] == 5 < counts[1]
    assert peaks[1] < peaks[0] == peaks[2]


@pytest.mark.parametrize(
    "op",
    [
        twice,
        torch.ops.remat_declared.twice,
        torch.ops.remat_declared.twice.default,
        "remat_declared::twice",
        "remat_declared::twice.default",
    ],
)
def test_every_name_of_an_operator_declares_it_and_is_returned(op: object) -> None:
    assert allow_recompute(op) is op
    assert "remat_declared::twice" in declared_names()
    forbid_recompute(op)
    assert "remat_declared::twice" not in declared_names()


@pytest.mark.parametrize(
    ("op", "says"),
    [
        (add_one_, "remat_declared::add_one_ changes an argument in place"),
        (noise, "remat_declared::noise draws random numbers"),
        (torch.ops.aten.bernoulli, "draws random numbers"),
        (torch.ops.aten.add_.Tensor, "changes an argument in place"),
        ("_c10d_functional::all_reduce", "communicates between ranks"),
        ("remat_declared::nowhere", "an operator that is registered"),
        ("remat_declared::twice.nowhere", "an operator that is registered"),
        ("twice", "an operator that is registered"),
        (torch.tanh, "an operator that is registered"),
    ],
)
def test_what_may_not_be_declared_is_refused(op: object, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        allow_recompute(op)


def test_what_is_declared_is_in_the_keys_of_plans_and_of_compiled_code() -> None:
    def keys() -> tuple[str, str]:
        gm = fx.symbolic_trace(nn.Tanh())
        key = plan_key(gm, (torch.zeros(2),), RematOptions(), 7, "rates")
        return key.digest, RematPartitioner(PartitionRequest(7), "rates").uuid()

    before = keys()
    allow_recompute(twice)
    after = keys()
    assert all(a != b for a, b in zip(before, after))
    forbid_recompute(twice)
    assert keys() == before


def attention(q: Tensor, dropout_p: float, softmax_scale: float = 1.0) -> tuple[Tensor, Tensor]:
    return q.clone(), q.sum(-1)


@pytest.fixture
def attention_op() -> Iterator[object]:
    """An operator of the name, and with the arguments that matter, of one that is known."""
    with torch.library._scoped_library("flash_attn", "FRAGMENT") as library:
        library.define("_flash_attn_forward(Tensor q, float dropout_p, float scale=1.0) -> (Tensor, Tensor)")
        library.impl("_flash_attn_forward", attention, "CompositeExplicitAutograd")
        yield torch.ops.flash_attn._flash_attn_forward.default


@pytest.mark.parametrize(("dropout", "is_known"), [(0.0, True), (0.1, False)])
def test_attention_of_another_library_is_known_unless_it_draws(
    attention_op: Any, dropout: float, is_known: bool
) -> None:
    graph = fx.Graph()
    node = graph.call_function(attention_op, (graph.placeholder("q"), dropout))
    assert (Trait.UNKNOWN not in traits_of(node)) == is_known
    forbid_recompute(attention_op)
    try:
        assert Trait.UNKNOWN in traits_of(node)
    finally:
        allow_recompute(attention_op)


def test_experts_of_transformers_are_recomputed() -> None:
    moe = pytest.importorskip("transformers.integrations.moe")
    assert moe

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 16, 16))

        def forward(self, x: Tensor) -> Tensor:
            offsets = torch.tensor([10, 12, 64], dtype=torch.int32)
            for _ in range(4):
                x = torch.ops.transformers.grouped_mm_fallback(x.sin(), self.weight, offsets)
            return x.square().sum()

    module, x = Experts(), torch.randn(64, 16)
    module(x).backward()
    expected = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    module.zero_grad(set_to_none=True)
    found, _ = trained(module, x, "min")
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    (report,) = remat_compiler.reports()
    recomputed = [d.made_by.target for d in report.decisions if d.decision is Decision.RECOMPUTE]
    assert "transformers.grouped_mm_fallback.default" in recomputed
