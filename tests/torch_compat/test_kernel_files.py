"""C++ kernels of one graph share few files, and are what they were."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch._inductor.codecache import CppPythonBindingsCodeCache
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch._inductor.utils import fresh_cache

from end_to_end.compiling import compile_with
from remat_compiler.torch_compat import kernel_files
from remat_compiler.torch_compat.kernel_files import FEW, MANY, in_files

KERNELS = 4
"""About the kernels of a step of `model`; there are at least so many."""


class Mean(nn.Module):
    """A loss."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.square().mean()


def model() -> nn.Module:
    """Products of matrices with loops between them, each of another width."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(8 + i, 9 + i), nn.LayerNorm(9 + i), nn.GELU()) for i in range(2)]
    return nn.Sequential(*layers, Mean())


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch, compiles_anew: None) -> Iterator[Path]:
    """Where Inductor puts what it compiles: an empty folder."""
    monkeypatch.setenv("REMAT_DISABLE_CACHE", "1")
    with fresh_cache():
        yield Path(cache_dir())


def gradients(compiled: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """The gradients of a step."""
    compiled.zero_grad()
    compiled(x).backward()
    return [p.grad.clone() for p in compiled.parameters() if p.grad is not None]


def libraries(folder: Path) -> list[Path]:
    """What the C++ compiler made."""
    return sorted(folder.rglob("*.so"))


def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are compiled as torch does."""
    monkeypatch.setattr(kernel_files, "_functions", lambda _, kernels: [kernel.alone() for kernel in kernels])


def trained(threads: int = 1) -> list[torch.Tensor]:
    """The gradients of a step under a budget."""
    with torch._inductor.config.patch(compile_threads=threads):
        return gradients(compile_with(model(), inner="inductor", memory_budget="1MiB"), torch.ones(4, 8))


def is_eager(found: Sequence[torch.Tensor]) -> bool:
    """Whether these are the gradients of the same step in eager."""
    eager = gradients(model(), torch.ones(4, 8))
    return all(torch.allclose(one, other, rtol=1e-4, atol=1e-6) for one, other in zip(found, eager, strict=True))


@pytest.mark.parametrize("threads", [1, 2])
def test_the_kernels_of_a_graph_share_a_file(threads: int, files: Path) -> None:
    found = trained(threads)
    # One for the forward and one for the backward.
    assert len(libraries(files)) == 2
    assert is_eager(found)


def test_they_compute_what_they_do_one_by_one(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together = trained()
    shared = len(libraries(files))
    torch._dynamo.reset()
    one_by_one(monkeypatch)
    with fresh_cache():
        alone = trained()
        assert len(libraries(Path(cache_dir()))) >= KERNELS > shared
    assert all(map(torch.equal, together, alone))


def test_a_second_process_would_find_the_files(files: Path) -> None:
    first = trained()
    before = {path: path.stat().st_mtime_ns for path in libraries(files)}
    torch._dynamo.reset()
    CppPythonBindingsCodeCache.cache_clear()
    again = trained()
    assert {path: path.stat().st_mtime_ns for path in libraries(files)} == before
    assert all(map(torch.equal, first, again))


@pytest.mark.parametrize("broken", ["no C++", "entry"])
def test_what_does_not_fit_together_is_compiled_one_by_one(
    broken: str, files: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "remat_compiler")
    if broken == "entry":
        monkeypatch.setattr(kernel_files, "_ENTRY", kernel_files.re.compile("nowhere"))
    else:
        together = kernel_files.file_of
        monkeypatch.setattr(kernel_files, "file_of", lambda kernels: together(kernels) + "\nno C++;\n")
    found = trained()
    assert any("one by one" in message for message in caplog.messages)
    assert is_eager(found)


def test_code_that_did_not_wait_compiles_its_kernel_once() -> None:
    made: list[int] = []

    def alone() -> Any:
        made.append(1)
        return lambda *values: sum(values)

    kernel = kernel_files._Kernel(["float*"], "", alone)
    assert [kernel(1, 2), kernel(3)] == [3, 3]
    assert made == [1]


@given(st.integers(0, 1_000), st.integers(1, 64))
def test_each_kernel_is_in_one_file_of_a_fair_size(count: int, threads: int) -> None:
    kernels: Sequence[Any] = range(count)
    parts = in_files(kernels, threads)
    assert [kernel for part in parts for kernel in part] == list(kernels)
    assert all(1 <= len(part) <= MANY for part in parts)
    assert len(parts) <= max(threads, -(-count // MANY))
    assert len(parts) == 1 or all(len(part) >= FEW for part in parts) or not count
