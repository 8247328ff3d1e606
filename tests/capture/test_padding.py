"""Products of odd sizes are padded where their operands are computed, and give what they gave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch._inductor import config
from torch.utils.checkpoint import checkpoint

import remat_compiler
from remat_compiler import torch_compat
from remat_compiler.capture import padding
from remat_compiler.torch_compat import Product

WORDS, WIDTH = 203, 24


@pytest.fixture(autouse=True)
def no_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What was compiled without padding is not taken for it."""
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path))
    with config.patch(force_disable_caches=True):
        yield


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> list[fx.GraphModule]:
    """Products of any size are padded, on a CPU, too; the joint graphs, once that is done."""
    graphs: list[fx.GraphModule] = []
    pad = padding.pad_products

    def noting(joint: fx.GraphModule, **options: Any) -> None:
        pad(joint, **options)
        graphs.append(joint)

    monkeypatch.setattr(Product, "on_tensor_cores", property(lambda product: True))
    monkeypatch.setattr(padding, "_LEAST_FLOPS", 0)
    monkeypatch.setattr(padding, "_FLOPS_PER_BYTE", 0)
    monkeypatch.setattr("remat_compiler.partition.stages.pad_products", noting)
    return graphs


class Words(nn.Module):
    """Logits of an odd vocabulary; `returned` has them leave the graph."""

    def __init__(self, *, tied: bool = False, bias: bool = False, returned: bool = False) -> None:
        super().__init__()
        self.words, self.mix = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=bias)
        self.returned = returned
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Any:
        logits = self.head(torch.relu(self.mix(self.words(tokens))))
        loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        return (loss, logits) if self.returned else loss


class Attention(nn.Module):
    """Capped scores of an odd number of tokens: products of batches, which no pattern makes one kernel of."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.mix(x).chunk(3, -1))
        return (torch.softmax(torch.tanh(q @ k.transpose(-1, -2)), -1) @ v).square().mean()


class Odd(nn.Module):
    """Layers between odd widths, one of them computed again by the user."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(17, 33), nn.Linear(33, 17, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = checkpoint(lambda y: F.gelu(self.up(y)), x, use_reentrant=False)
        return (self.down(inner) + x).square().mean()


def tokens() -> Tensor:
    return torch.randint(WORDS, (4, 9), generator=torch.Generator().manual_seed(1))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "words": (Words, tokens),
    "tied": (lambda: Words(tied=True), tokens),
    "bias": (lambda: Words(bias=True), tokens),
    "returned": (lambda: Words(returned=True), tokens),
    "bfloat16": (lambda: Words(bias=True).to(torch.bfloat16), tokens),
    "attention": (Attention, lambda: torch.randn(3, 13, WIDTH)),
    "odd": (Odd, lambda: torch.randn(21, 17)),
}


def step(model: nn.Module, call: Callable[..., Any], given: Tensor) -> list[Tensor]:
    """Loss, what else is returned, and gradients."""
    model.zero_grad()
    result = call(given)
    results = result if isinstance(result, tuple) else (result,)
    results[0].backward()
    return [*results, *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize(
    ("name", "budget"), [*((name, 0.8) for name in MODELS), ("words", "min"), ("tied", "min"), ("returned", 1.0)]
)
def test_padded_steps_give_what_eager_gives(name: str, budget: float | str, everywhere: list[fx.GraphModule]) -> None:
    make, inputs = MODELS[name]
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, given = make(), inputs()
    expected = step(model, model, given)
    options = {"memory_budget": budget, "on_infeasible": "min", "cost_model": "nominal"}
    found = step(model, torch.compile(model, backend="remat", options=options), given)
    near = {"rtol": 2e-2, "atol": 2e-2} if name == "bfloat16" else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(found, expected, **near)
    assert [one.stride() for one in found] == [one.stride() for one in expected]
    assert not any(report.notes for report in remat_compiler.reports() if "failed" in " ".join(report.notes))
    assert any(padded(graph) for graph in everywhere)
    # The smallest peak takes no copies of parameters, and in a checkpointed region values have readers elsewhere.
    left = [one for one in torch_compat.products(everywhere[0].graph) if one.slowdown() > 1]
    assert not left or budget == "min" or name in ("odd", "attention")


def padded(graph: fx.GraphModule) -> list[fx.Node]:
    """What is padded in a graph."""
    return [node for node in graph.graph.nodes if node.target is torch_compat.PAD]


def test_sizes_that_change_are_left_as_they_are(everywhere: list[fx.GraphModule]) -> None:
    torch._dynamo.reset()
    model = Words()
    call = torch.compile(model, backend="remat", options={"memory_budget": 0.8, "on_infeasible": "min"}, dynamic=True)
    for length in (9, 11):
        given = torch.randint(WORDS, (4, length))
        torch.testing.assert_close(step(model, call, given), step(model, model, given), rtol=1e-4, atol=1e-5)
    assert any(padded(graph) for graph in everywhere)


def test_products_on_a_cpu_are_not_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(padding, "_LEAST_FLOPS", 0)
    torch._dynamo.reset()
    model, graphs = Words(), []

    def noting(joint: fx.GraphModule, **options: Any) -> None:
        padding.pad_products(joint, **options)
        graphs.append(joint)

    monkeypatch.setattr("remat_compiler.partition.stages.pad_products", noting)
    step(model, torch.compile(model, backend="remat", options={"memory_budget": 0.8, "on_infeasible": "min"}), tokens())
    assert graphs
    assert not any(padded(graph) for graph in graphs)
