"""Symbolic sizes: at other numbers, as copies, as polynomials, and what is assumed of them behind Dynamo's back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import sympy
import torch
from torch import Tensor
from torch.utils._sympy import functions

from remat_compiler import torch_compat
from remat_compiler.torch_compat import symbols


class Traced:
    """A backend that keeps Dynamo's graph and its inputs."""

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        self.symbols = torch_compat.input_symbols(inputs)
        self.inputs = torch_compat.symbolic_inputs(gm, inputs)
        self.context = torch_compat.saved_compilation()
        self.later = torch_compat.LaterAssumptions()
        return gm.forward

    @property
    def rows(self) -> Any:
        """The symbolic length of the first tensor."""
        return next(x for x in self.inputs if isinstance(x, Tensor)).shape[0]


@pytest.fixture
def traced() -> Traced:
    """Of a function of two inputs whose lengths are one symbol and its double."""
    torch._dynamo.reset()
    backend, x, y = Traced(), torch.randn(5, 3), torch.randn(10, 3)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=64)
    torch._dynamo.mark_dynamic(y, 0)
    torch.compile(lambda x, y: torch.cat([x, x]) + y, backend=backend)(x, y)
    return backend


def test_symbols_of_the_inputs(traced: Traced) -> None:
    (symbol,) = traced.symbols
    assert (symbol.hint, symbol.signed, symbol.upper) == (5, False, 64)
    assert symbol.source == "L['x'].size()[0]"
    assert isinstance(traced.inputs[symbol.position], torch.SymInt)
    assert [str(x.shape[0]) for x in traced.inputs if isinstance(x, Tensor)] == [symbol.name, f"2*{symbol.name}"]


def test_sizes_at_other_numbers(traced: Traced) -> None:
    name = traced.symbols[0].name
    assert torch_compat.size_hint(2 * traced.rows + 1) == 11
    with torch_compat.sizes_at({name: 20}):
        assert torch_compat.size_hint(2 * traced.rows + 1) == 41
        with torch_compat.sizes_at({"another": 7}):
            assert torch_compat.size_hint(traced.rows) == 5
        assert torch_compat.symbol_hint(traced.rows) == 20
    assert torch_compat.size_hint(traced.rows) == 5


def test_copies_keep_dynamos_symbols_free(traced: Traced) -> None:
    name = traced.symbols[0].name
    copies = torch_compat.OwnSymbols({name: 9})
    copy = copies.copy(traced.rows * 2)
    assert isinstance(copy, torch.SymInt)
    assert torch_compat.size_hint(copy) == 18
    assert bool(copy > 4)
    (assumption,) = copies.assumptions
    assert [eval(assumption, {name: n}) for n in (2, 3)] == [False, True]
    assert traced.later.conditions([name]) == ()
    with copies.at({name: 100}):
        assert torch_compat.size_hint(copy) == 200


def test_symbols_without_a_number_are_unknown(traced: Traced) -> None:
    assert torch_compat.OwnSymbols({}).copy(traced.rows) is None


def test_what_may_be_negative_is_no_monomial(traced: Traced) -> None:
    """Rows of a formula are compared by their coefficients, which tells nothing where monomials may be below 0."""
    name = traced.symbols[0].name
    copies = torch_compat.OwnSymbols({name: 9})
    rows = copies.copy(traced.rows)
    ((expression, count),) = copies.polynomial(512 * ((40 - rows) // 2) + 8).items()
    assert (count, eval(expression, {name: 9})) == (1, 7_688)
    signed = torch_compat.OwnSymbols({name: -4}, [name])
    ((expression, count),) = signed.polynomial(signed.copy(traced.rows) * 3 + 20).items()
    assert (count, eval(expression, {name: -4})) == (1, 8)


def test_polynomials(traced: Traced) -> None:
    name = traced.symbols[0].name
    copies = torch_compat.OwnSymbols({name: 9})
    rows = copies.copy(traced.rows)
    assert copies.polynomial(12) == {"1": 12}
    assert copies.polynomial(0) == {}
    assert copies.polynomial(4 * (rows - 1) + 3 * rows * rows + 4) == {name: 4, f"{name}*{name}": 3}
    padded = copies.polynomial(8 * ((rows + 6) // 7) + 1)
    assert padded.pop("1") == 1
    ((expression, count),) = padded.items()
    assert count == 8
    assert [eval(expression, {name: n}) for n in (7, 8, 15)] == [1, 2, 3]


def test_later_assumptions_are_conditions(traced: Traced) -> None:
    name = traced.symbols[0].name
    assert traced.context is not None
    assert traced.later.conditions([name]) == ()
    with traced.context(), traced.later.recorded():
        assert bool(traced.rows * 2 < 50)
    (condition,) = traced.later.conditions([name]) or ()
    assert [eval(condition, {name: n}) for n in (24, 25)] == [True, False]
    assert traced.later.conditions([]) is None


S, T = sympy.symbols("s t", integer=True, positive=True)
WRITTEN: dict[str, Any] = {
    "floats": functions.ToFloat(S) < functions.FloatPow(functions.ToFloat(T), sympy.Float(2.0)),
    "square root": functions.OpaqueUnaryFn_sqrt(functions.ToFloat(S)) > 4,
    "logarithm": functions.OpaqueUnaryFn_log2(functions.ToFloat(S)) > 4,
    "choice": sympy.Eq(functions.Where(S < T, S, T), 5),
    "largest": sympy.Eq(functions.Max(S, T), 17),
    "quotients": functions.IntTrueDiv(S, T) > functions.FloorDiv(S, T),
    "rounded": sympy.Eq(functions.CeilToInt(functions.IntTrueDiv(S, T)), 4),
    "remainder": sympy.Eq(functions.Mod(S, T), 2),
    "all of them": sympy.And(S > T, sympy.Or(S < T, sympy.Ne(S, T))),
}


@pytest.mark.parametrize("condition", WRITTEN.values(), ids=WRITTEN)
def test_conditions_are_written_in_plain_python(condition: Any) -> None:
    source = symbols._condition(condition, {"s": "rows", "t": "width"})
    assert source is not None
    for rows, width in ((17, 5), (5, 17), (8, 8)):
        assert eval(source, {"math": math, "rows": rows, "width": width}) == bool(condition.subs({S: rows, T: width}))


def test_a_condition_that_cannot_be_written_holds_nowhere() -> None:
    unwritten = functions.IsNonOverlappingAndDenseIndicator(S, T, T, 1)
    assert symbols._condition(sympy.Eq(unwritten, 1), {"s": "s", "t": "t"}) is None
