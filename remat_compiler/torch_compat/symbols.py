"""Symbolic sizes: those of a graph's inputs, a private copy of them, and byte counts as polynomials.

Code that runs with a copy (`OwnSymbols`) cannot put a guard on a size that Dynamo watches: all its assumptions are in
`OwnSymbols.assumptions` afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sympy
import torch
from torch import fx
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._sympy import functions
from torch.utils._sympy.printers import PythonPrinter

from remat_compiler.torch_compat.dynamo_context import take_over_mark, twin_of_float
from remat_compiler.torch_compat.sizes import sizes_at, symbol_hint

ONE = "1"
"""The monomial without a symbol."""


@dataclass(frozen=True, slots=True)
class InputSymbol:
    """A symbol among a graph's inputs.

    Attributes:
        name: Its name.
        source: Its source, as Dynamo's guards write it, such as ``L['x'].size()[1]``.
        position: Position of the argument that is the symbol itself.
        hint: Its number in the traced inputs.
        signed: Whether it may be below 0: not a size, but a number that the user passes.
        upper: Its largest value; `None` if there is no limit.
    """

    name: str
    source: str
    position: int
    hint: int
    signed: bool
    upper: int | None


def input_symbols(example_inputs: Sequence[Any]) -> tuple[InputSymbol, ...]:
    """The symbols among the inputs of Dynamo's graph, which takes each symbol that it uses as an argument."""
    # The first argument of each symbol, in order of the arguments.
    found: dict[str, InputSymbol] = {}
    for position, value in enumerate(example_inputs):
        if isinstance(value, torch.SymInt) and isinstance(value.node.expr, sympy.Symbol):
            hint = value.node.hint if value.node.has_hint() else None
            if isinstance(hint, int):  # the length of a jagged dimension has a symbol of another kind for its hint
                bounds = value.node.shape_env.var_to_range.get(value.node.expr)
                signed = bounds is None or not bool(bounds.lower >= 0)
                upper = int(bounds.upper) if bounds is not None and bounds.upper.is_Integer else None
                name = value.node.expr.name
                found.setdefault(name, InputSymbol(name, _source_of(value), position, int(hint), signed, upper))
    return tuple(found.values())


def symbol_name(value: object) -> str | None:
    """The name of a symbol; `None` for all else, expressions of symbols among it."""
    if isinstance(value, torch.SymInt) and isinstance(value.node.expr, sympy.Symbol):
        return str(value.node.expr.name)
    return None


def _source_of(symbol: torch.SymInt) -> str:
    """The source of a symbol; its name if the source is unknown."""
    sources = symbol.node.shape_env.var_to_sources.get(symbol.node.expr) or [symbol.node.expr]
    name = sources[0].name
    return str(name() if callable(name) else name)  # a property from torch 2.12 on


def symbolic_inputs(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> list[Any]:
    """The inputs as Dynamo traced them: fake tensors whose dynamic sizes are symbols.

    Args:
        gm: Dynamo's graph.
        example_inputs: The inputs that Dynamo passed with it, which have the sizes of one call.
    """
    placeholders = gm.graph.find_nodes(op="placeholder")
    inputs = []
    for node, given in zip(placeholders, example_inputs):
        # Dynamo's own fake tensor of a float lacks the float.
        of_float = twin_of_float(given)
        traced = node.meta.get("example_value", given) if of_float is None else of_float
        take_over_mark(traced, given)
        inputs.append(traced)
    return inputs


class OwnSymbols:
    """Copies of the symbols in a graph's inputs, in a `ShapeEnv` of their own.

    Args:
        sizes: The number that each symbol stands for, by name.
        signed: Names of those that may be below 0.
    """

    def __init__(self, sizes: Mapping[str, int], signed: Iterable[str] = ()) -> None:
        self.shape_env = ShapeEnv()
        self._sizes = dict(sizes)
        self._signed = frozenset(signed)
        self._copies: dict[str, sympy.Symbol] = {}

    def copy(self, value: torch.SymInt) -> int | torch.SymInt | None:
        """A size in copied symbols; `None` if it is data-dependent, or a symbol in it has no number."""
        symbols = value.node.expr.free_symbols
        # The copy has its own hint: branches that ask for a number go the way of `sizes`, as in a run on numbers.
        with sizes_at(self._sizes):
            hint = symbol_hint(value)
        if hint is None or not all(symbol.name in self._sizes for symbol in symbols):
            return None
        replaced = value.node.expr.xreplace({symbol: self._copy_of(symbol.name) for symbol in symbols})
        copied: int | torch.SymInt = self.shape_env.create_symintnode(replaced, hint=int(hint))
        return copied

    def _copy_of(self, name: str) -> sympy.Symbol:
        if name not in self._copies:
            self._copies[name] = self.shape_env.create_symbol(
                self._sizes[name],
                ConstantSource(name),
                # Not `DUCK`, which would give symbols of equal numbers one copy.
                dynamic_dim=DimDynamic.DYNAMIC,
                constraint_dim=None,
                positive=None if name in self._signed else True,
                # A size that is 0 or 1 here must stay a symbol, too.
                do_not_specialize_zero_one=True,
            )
        return self._copies[name]

    @property
    def names(self) -> Mapping[str, str]:
        """Name of each original symbol by the name of its copy."""
        return {copy.name: name for name, copy in self._copies.items()}

    @contextmanager
    def at(self, sizes: Mapping[str, int]) -> Iterator[None]:
        """Within the block the copies and their originals stand for these numbers (see `sizes_at`)."""
        copied = {copy: sizes[name] for copy, name in self.names.items()}
        with sizes_at({**sizes, **copied}):
            yield

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions made of the sizes so far, as Python conditions over the names of the original symbols."""
        # A guard that cannot be written as a condition must not be forgotten: it holds nowhere.
        return tuple(_condition(guard.expr, self.names) or NOWHERE for guard in self.shape_env.guards)

    def polynomial(self, size: int | torch.SymInt) -> Mapping[str, int]:
        """Bytes as integer coefficients by monomial; monomials are Python expressions, at least 0, over the symbols."""
        if isinstance(size, int):
            return {ONE: size} if size else {}
        return _polynomial(size.node.expr, tuple(self.names.items()))


NOWHERE = "False"
"""The condition that holds at no sizes, in place of one that cannot be written in Python."""
# Names that conditions may call: those that `peak_formula` evaluates them with.
_PLAIN = ("math", "float", "int", "max", "min", "abs", "round")


class LaterAssumptions:
    """Assumptions about symbolic sizes made after Dynamo has its guards: Dynamo does not check them, the caller must.

    Made at the end of the compilation under way.  Later compilations share one record: each builds on the assumptions
    of those before it.
    """

    def __init__(self) -> None:
        mode = torch._guards.TracingContext.get().fake_mode
        self._env = None if mode is None else mode.shape_env
        # Guards up to here are Dynamo's, which checks them with each call.
        self._known = 0 if self._env is None else len(self._env.guards)

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Within the block assumptions are recorded; otherwise torch would warn of them and forget them."""
        if self._env is None:
            yield
            return
        # Dynamo freezes the environment once it has written its guards.
        frozen, self._env.frozen = self._env.frozen, False
        try:
            yield
        finally:
            self._env.frozen = frozen

    def conditions(self, symbols: Iterable[str]) -> tuple[str, ...] | None:
        """All assumptions, as Python conditions over `symbols`; `None` if other symbols or functions are in them."""
        guards = [] if self._env is None else self._env.guards[self._known :]
        names = {symbol.name: symbol.name for guard in guards for symbol in guard.expr.free_symbols}
        # A symbol that is no input, such as a data-dependent size, is unknown when a call comes.
        if not set(names) <= set(symbols):
            return None
        found = [condition for guard in guards if (condition := _condition(guard.expr, names)) is not None]
        return tuple(found) if len(found) == len(guards) else None


@lru_cache(maxsize=4_096)
def _polynomial(expression: Any, names: tuple[tuple[str, str], ...]) -> Mapping[str, int]:
    terms = sympy.expand(expression).as_coefficients_dict()
    whole = all(coefficient.is_Integer for coefficient in terms.values())
    # Else one monomial of the whole: bytes are whole and at least 0, whatever their terms are.
    if not whole or not all(map(_is_never_negative, terms)):
        return {_source(expression, dict(names)): 1}
    return {_source(monomial, dict(names)): int(coefficient) for monomial, coefficient in terms.items()}


def _is_never_negative(expression: Any) -> bool:
    """Whether an expression is certainly at least 0 at any sizes."""
    if expression.is_Symbol or expression.is_number:
        return bool(expression.is_nonnegative)
    # A remainder has the sign of the divisor.
    if isinstance(expression, (functions.Mod, functions.PythonMod)):
        return bool(expression.args[1].is_positive)
    # These are at least 0 if their parts are.
    if isinstance(expression, (sympy.Add, sympy.Mul, sympy.Pow, functions.FloorDiv, functions.CleanDiv)):
        return all(map(_is_never_negative, expression.args))
    return False


def _condition(expression: Any, names: Mapping[str, str]) -> str | None:
    """Python source of a condition that plain Python evaluates; `None` if torch's own functions are in it."""
    # Compiled only to see which names it needs: the printer writes unknown functions by their names.
    try:
        source = _source(expression, names)
        code = compile(source, "<condition>", "eval")
    except (NotImplementedError, SyntaxError):
        return None
    return source if set(code.co_names) <= {*names.values(), *_PLAIN, *dir(math)} else None


def _source(expression: Any, names: Mapping[str, str]) -> str:
    """Python source of an expression, in the names of the original symbols."""
    renamed = {symbol: sympy.Symbol(names[symbol.name], integer=True) for symbol in expression.free_symbols}
    return str(_PlainPrinter().doprint(expression.xreplace(renamed)))


class _PlainPrinter(PythonPrinter):
    """Prints Python for plain numbers; torch's own printer calls torch for floats, as symbols may be put in, too."""

    def _print_ToFloat(self, expr: sympy.Expr) -> str:  # noqa: N802
        return f"float({self._print(expr.args[0])})"

    def _print_OpaqueUnaryFn_sqrt(self, expr: sympy.Expr) -> str:  # noqa: N802
        return f"math.sqrt({self._print(expr.args[0])})"

    def _print_Where(self, expr: sympy.Expr) -> str:  # noqa: N802
        condition, then, otherwise = map(self._print, expr.args)
        return f"(({then}) if ({condition}) else ({otherwise}))"
