"""One symbolic dry run tells the peak that dry runs at every size find, to the byte."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from remat_compiler import torch_compat
from remat_compiler.costs.workspace import WorkspaceTable
from remat_compiler.dry_run.dry_run import DryRun, dry_run
from remat_compiler.dry_run.emitted_wrapper import GraphRecorder
from remat_compiler.dry_run.peak_formula import NO_WORKSPACE, Row, peak_formula_of
from remat_compiler.dry_run.symbolic_run import symbolic_step
from remat_compiler.dynamic_shapes.peak_guard import PeakGuard
from versions import ASSUMES_ODD_SIZES

TABLE = WorkspaceTable()


class Attention(nn.Module):
    """Quadratic in the length."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(32, 96), nn.Linear(32, 32), nn.LayerNorm(32)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = torch.softmax(q @ k.transpose(-1, -2), -1)
        return self.norm(x + torch.nn.functional.gelu(self.out(nn.functional.dropout(scores, 0.1) @ v))).mean()


class Windows(nn.Module):
    """Pads the image to whole windows of 7, so that bytes go in steps."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Linear(3, 16), nn.Linear(49, 49)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        height, width = x.shape[1:3]
        x = nn.functional.pad(x, (0, 0, 0, (-width) % 7, 0, (-height) % 7))
        rows, columns = x.shape[1] // 7, x.shape[2] // 7
        x = x.view(-1, rows, 7, columns, 7, 16).permute(0, 1, 3, 5, 2, 4).reshape(-1, rows * columns, 16, 49)
        return torch.relu(self.mix(torch.relu(x))).square().mean()


class Net(nn.Module):
    """Convolutions, whose workspace depends on the size."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.MaxPool2d(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).square().mean()


class Compiled:
    """A backend that keeps what it needs for dry runs."""

    def __init__(self, inner: str) -> None:
        self.inner = inner

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        self.symbols = torch_compat.input_symbols(inputs)
        self.inputs = torch_compat.symbolic_inputs(gm, inputs)
        with GraphRecorder() as recorder:
            if self.inner == "inductor":
                self.compiled = torch._inductor.compile_fx.compile_fx(gm, inputs)
            else:
                from functorch.compile import min_cut_rematerialization_partition as cut

                self.compiled = torch_compat.compile_with_interpreter(gm, inputs, cut)
        self.graphs = recorder.graphs
        return self.compiled

    def check_at(self, sizes: Mapping[str, int]) -> DryRun:
        with torch_compat.sizes_at(sizes):
            found = dry_run(self.compiled, self.inputs, self.graphs, TABLE)
        assert not found.unknown
        return found


CASES = {
    "attention": (Attention, (4, 20, 32), (0, 1), [(2, 5), (4, 20), (4, 133), (9, 64)]),
    "windows": (Windows, (2, 20, 33, 3), (0, 1, 2), [(2, 20, 33), (2, 21, 35), (3, 48, 8), (2, 100, 91)]),
    "convolutions": (Net, (2, 3, 20, 24), (0, 2, 3), [(2, 20, 24), (5, 33, 64), (2, 100, 17)]),
}


@pytest.mark.parametrize(
    ("case", "inner"),
    [
        ("attention", "inductor"),
        ("attention", "eager"),
        pytest.param("windows", "inductor", marks=pytest.mark.slow),
        ("windows", "eager"),
        ("convolutions", "eager"),  # on a CPU Inductor makes a constant of each size of an image
    ],
)
def test_equals_dry_runs_at_every_size(case: str, inner: str, caplog: pytest.LogCaptureFixture) -> None:
    kind, shape, changing, others = CASES[case]
    torch._dynamo.reset()
    backend, x = Compiled(inner), torch.randn(shape)
    for dim in changing:
        torch._dynamo.mark_dynamic(x, dim)
    torch.compile(kind(), backend=backend)(x).backward()
    hints = {symbol.name: symbol.hint for symbol in backend.symbols}
    step = symbolic_step(backend.compiled, backend.inputs, backend.graphs, hints)
    assert step is not None
    formula = step.formula()
    guard = PeakGuard(formula, TABLE, [hints[name] for name in formula.symbols])
    for other in others:
        sizes = dict(zip(_names(backend, shape), other))
        values = [sizes[name] for name in formula.symbols]
        if ASSUMES_ODD_SIZES and case == "convolutions" and not formula.holds(values):
            continue
        assert formula.holds(values), (formula.conditions, sizes)
        calls = formula.calls_at(values, range(len(formula.calls)))
        taken = TABLE.resolve(calls)
        exact = formula.peak_bytes(values, lambda i, calls=calls, taken=taken: taken.get(calls[i].key, 0))
        check = backend.check_at(sizes)
        assert (exact, *formula.boundary_and_final_bytes(values)) == (
            check.peak_bytes,
            check.boundary_bytes,
            check.final_bytes,
        )
        assert guard.peak_bytes(values, 0) == exact
        assert check.trace is not None
        own = sorted(size for size in step.bytes_at(values) if size)
        inside = sorted(life.workspace_bytes for life in check.timeline if life.workspace_bytes)
        assert sorted([*own, *inside]) == sorted(life.size_bytes for life in check.trace.lives)
    assert "the workspace of" not in caplog.text


@pytest.mark.parametrize("inner", ["inductor", "eager"])
def test_sizes_that_the_allocator_rounds(inner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on an accelerator, where the formula has to round as well."""
    monkeypatch.setattr(torch_compat, "allocation_alignment", lambda _: 512)
    torch._dynamo.reset()
    backend, x = Compiled(inner), torch.randn(4, 20, 32)
    torch._dynamo.mark_dynamic(x, 1)
    torch.compile(Attention(), backend=backend)(x).backward()
    (symbol,) = backend.symbols
    step = symbolic_step(backend.compiled, backend.inputs, backend.graphs, {symbol.name: symbol.hint})
    assert step is not None
    formula = step.formula()
    for length in (5, 20, 33, 128, 201):
        calls = formula.calls_at([length], range(len(formula.calls)))
        taken = TABLE.resolve(calls)
        exact = formula.peak_bytes([length], lambda i, calls=calls, taken=taken: taken.get(calls[i].key, 0))
        check = backend.check_at({symbol.name: length})
        assert (exact, *formula.boundary_and_final_bytes([length])) == (
            check.peak_bytes,
            check.boundary_bytes,
            check.final_bytes,
        )


def _names(backend: Compiled, shape: Sequence[int]) -> list[str]:
    """The symbols, in the order of the changing dimensions of the first input."""
    tensor = next(x for x in backend.inputs if isinstance(x, Tensor) and x.dim() == len(shape) and not x.requires_grad)
    return [str(n) for n in tensor.shape if isinstance(n, torch.SymInt)]


@contextmanager
def _at(sizes: Mapping[str, int]) -> Iterator[None]:
    yield


def test_rows_that_are_never_the_peak_are_dropped() -> None:
    lives = [(0, 2, {"s": 4}), (1, None, {"1": 10}), (2, 3, {"s": 2}), (3, None, {"s*s": 1})]
    formula = peak_formula_of(["s"], lives, [NO_WORKSPACE] * 4, (), (), _at)
    assert formula.monomials == ("1", "s", "s*s")
    assert set(formula.rows) == {Row((10, 4, 0), -1), Row((10, 0, 1), -1)}
    assert [formula.live_bytes([s]) for s in (1, 4, 5)] == [14, 26, 35]


def test_conditions_are_asked() -> None:
    formula = peak_formula_of(["a", "b"], [(0, None, {"a*b": 3})], [NO_WORKSPACE], ("a > 2", "b % 7 == 0"), (), _at)
    assert [formula.holds(sizes) for sizes in ([3, 7], [2, 7], [3, 8])] == [True, False, False]
    guard = PeakGuard(formula, TABLE, [3, 7])
    assert (guard.peak_bytes([3, 14], 0), guard.peak_bytes([3, 13], 0)) == (126, None)


def test_nothing_alive_is_no_peak() -> None:
    formula = peak_formula_of(["s"], [], [], (), (), _at)
    assert formula.live_bytes([5]) == 0
