"""A function that a command names by its file, looked at without a run of the file, which may import for a minute."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from remat_compiler.errors import OptionError, UnknownName


def check_function(path: Path, name: str, *, called_with_batch: bool) -> None:
    """Check that a file has a function, and that it takes the batch if there is one.

    Nothing is said of a function that the file does not define itself, or only by running code.

    Args:
        path: The file.
        name: The function.
        called_with_batch: Whether it is called with one argument, the batch; else with none.

    Raises:
        OptionError: The file cannot be read as Python, or the function cannot be called so.
        UnknownName: The file has no such function.
    """
    try:
        statements = list(_at_top(ast.parse(path.read_bytes(), str(path)).body))
    except (OSError, SyntaxError, ValueError) as error:
        raise OptionError(f"{path} cannot be read as Python: {error}") from error
    names = {one for statement in statements for one in _names_of(statement)}
    if "*" not in names and name not in names:
        functions = [one.name for one in statements if isinstance(one, (ast.FunctionDef, ast.ClassDef))]
        raise UnknownName("function", name, functions, str(path))
    found = [one for one in statements if name in _names_of(one)]
    # Decorators may change what it takes, and of two definitions it is not known which one counts.
    if len(found) == 1 and isinstance(found[0], ast.FunctionDef) and not found[0].decorator_list:
        _check_arguments(found[0], str(path), called_with_batch)


def _check_arguments(function: ast.FunctionDef, file: str, called_with_batch: bool) -> None:
    """Raise `OptionError` if the function cannot be called with the batch, or with nothing."""
    takes = function.args
    places = [one.arg for one in (*takes.posonlyargs, *takes.args)]
    needed = places[: len(places) - len(takes.defaults)]
    needed += [one.arg for one, default in zip(takes.kwonlyargs, takes.kw_defaults) if default is None]
    shown = f"{function.name}({ast.unparse(takes)}) of {file}"
    if called_with_batch and not places and takes.vararg is None:
        raise OptionError(f"{shown} takes no batch; leave out --batch and --max-batch, or give it a parameter for it")
    if needed and not called_with_batch:
        raise OptionError(f"{shown} takes {needed[0]!r}, and no batch is given; give one by --batch N")
    if len(needed) > 1:
        raise OptionError(f"{shown} takes {', '.join(needed)}; it is called with the batch alone")


def _at_top(statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run when the file does, those within others, such as `if` and `try`, included."""
    for statement in statements:
        yield statement
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        for field in ("body", "orelse", "finalbody"):
            yield from _at_top(getattr(statement, field, []))
        for handler in (*getattr(statement, "handlers", []), *getattr(statement, "cases", [])):
            yield from _at_top(handler.body)


def _names_of(statement: ast.stmt) -> set[str]:
    """Names that a statement by itself gives something to; ``*`` for names that are not known."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {(one.asname or one.name).partition(".")[0] for one in statement.names}
    found = {one.id for one in ast.walk(statement) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    # `globals()` or `exec` may make any name.
    read = {one.id for one in ast.walk(statement) if isinstance(one, ast.Name)}
    return found | ({"*"} if read & {"globals", "exec", "setattr", "vars"} else set())
