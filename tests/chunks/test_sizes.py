"""Bounds of chunks whose rows are an expression: the same chunks for every number of rows, whatever it is."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import fx
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from remat_compiler import torch_compat
from remat_compiler.chunks.cut import Cut, even_bounds, seen_through, shifted
from remat_compiler.torch_compat import Size, number, same

BATCH, LENGTH, ROWS = sympy.symbols("batch length rows", integer=True, positive=True)


def at(size: Size, **numbers: int) -> int:
    """What a size is at these numbers."""
    with torch_compat.sizes_at(numbers):
        return number(size)


@given(planned=st.integers(1, 400), rows=st.integers(0, 400), chunks=st.integers(1, 70))
def test_bounds_rise_to_the_end_for_any_number_of_rows(planned: int, rows: int, chunks: int) -> None:
    with torch_compat.sizes_at({"rows": planned}):
        bounds = even_bounds(ROWS, chunks)
    assert 1 <= len(bounds) - 1 <= min(chunks, planned)
    found = [at(bound, rows=rows) for bound in bounds]
    assert (found[0], found[-1]) == (0, rows)
    assert found == sorted(found)
    lengths = [b - a for a, b in pairwise(at(bound, rows=planned) for bound in bounds)]
    assert min(lengths) > 0
    # Nearly as even as chunks of a number of rows are.
    assert max(lengths) <= -(-planned // chunks) * 2


def test_sequences_stay_together() -> None:
    with torch_compat.sizes_at({"batch": 7, "length": 5}):
        bounds = even_bounds(BATCH * LENGTH, 3, LENGTH)
        cut = seen_through((BATCH * LENGTH, 4), (BATCH, LENGTH, 4), Cut(0, 0, bounds))
        assert cut is not None
        assert (cut.first, cut.last) == (0, 0)
        assert [number(bound) for bound in cut.bounds] == [0, 3, 6, 7]
        # Rows of several sequences are counted across both dimensions.
        whole = seen_through((BATCH * LENGTH, 4), (BATCH, LENGTH, 4), Cut(0, 0, even_bounds(BATCH * LENGTH, 3)))
        assert whole is not None
        assert (whole.first, whole.last) == (0, 1)


@given(rows=st.integers(1, 60), by=st.integers(0, 3))
def test_a_range_of_the_rows_at_any_size(rows: int, by: int) -> None:
    with torch_compat.sizes_at({"rows": 40}):
        cut = shifted(Cut(0, 0, even_bounds(ROWS, 4)), by, ROWS - by)
    assert cut is not None
    found = [at(bound, rows=rows + by) for bound in cut.bounds]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (0, rows)


def test_sizes_that_are_known_to_be_equal() -> None:
    assert same((BATCH + 1) * LENGTH, BATCH * LENGTH + LENGTH)
    assert not same(BATCH, LENGTH)
    assert not same(ROWS, 1)


Formula = Callable[[sympy.Expr, sympy.Expr], sympy.Expr]


def graph_with(formula: Formula) -> fx.Graph:
    """A graph of two numbers that returns what the formula makes of them, given as an expression."""
    graph, environment = fx.Graph(), ShapeEnv()
    symbols = []
    for name in ("batch", "length"):
        symbol = environment.create_symbol(5, ConstantSource(name), DimDynamic.DYNAMIC, None)
        graph.placeholder(name).meta["val"] = environment.create_symintnode(symbol, hint=5)
        symbols.append(symbol)
    graph.output(graph.call_function(torch.sym_max, (formula(*symbols), 0)))
    return graph


FORMULAS: dict[str, Formula] = {
    "last_chunk": lambda batch, length: batch * length - 3 * torch_compat.floor_divided(batch * length, 4),
    "range": lambda batch, length: torch_compat.least(torch_compat.most(batch - 2, 0), length),
    "power": lambda batch, length: batch**2 * length + 1,
}


@pytest.mark.parametrize("name", FORMULAS)
def test_sizes_are_written_as_operators(name: str) -> None:
    graph = graph_with(FORMULAS[name])
    torch_compat.write_sizes(graph)
    graph.lint()
    run = fx.GraphModule({}, graph)
    size = FORMULAS[name](BATCH, LENGTH)
    for batch, length in ((1, 1), (2, 7), (9, 4)):
        assert run(batch, length) == at(size, batch=batch, length=length)


def test_a_size_without_operators_is_told() -> None:
    graph = graph_with(lambda batch, length: sympy.factorial(batch))
    with pytest.raises(torch_compat.UnknownSize, match="factorial"):
        torch_compat.write_sizes(graph)
