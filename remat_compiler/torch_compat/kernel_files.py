"""Several C++ kernels of a graph in one file, so that the compiler runs once for all of them.

Inductor writes a file for each kernel that runs on a CPU.  Starting the compiler, reading the headers and linking take
about a second, a kernel a tenth; and planned graphs have more kernels, since a loop ends where memory is freed.

    one file    namespace 0: kernel_0 and its Python module | namespace 1: kernel_1 and its Python module | ...

Each kernel keeps the binding that torch writes for it; Python loads the modules of one file by their names.  Where
anything differs from what is expected here, kernels are compiled one by one, as torch does.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from types import ModuleType
from typing import Any

from remat_compiler.log import logger_of
from remat_compiler.torch_compat.patches import CPU_KERNELS, KERNELS_READY
from remat_compiler.torch_compat.patching import replace
from remat_compiler.torch_compat.thread_flag import ThreadFlag

logger = logger_of(__name__)

FEW, MANY = 8, 64
"""Kernels of a file: where several compilers run at once, at least so many are worth one; and the most of any file."""

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*(?:include|define PY_SSIZE_T_CLEAN)\b.*$", re.MULTILINE)
_ENTRY = re.compile(r'(extern\s+"C"\s+void\s+)kernel(?=\s*\()')

_common = ThreadFlag()


@dataclass(slots=True, eq=False)
class _Kernel:
    """A kernel that is not compiled yet.

    Attributes:
        types: C++ types of its arguments.
        source: Its code, with an entry function named ``kernel``.
        alone: Compiles it in a file of its own, as torch does; gives the function, or a future of it.
        function: The function, once it was called before its file was compiled.
    """

    types: Sequence[str]
    source: str
    alone: Callable[[], Any]
    function: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        # Only where code runs that did not wait for its kernels.
        if self.function is None:
            made = self.alone()
            self.function = made.result() if hasattr(made, "result") else made
        return self.function(*arguments)


@contextmanager
def common_kernel_files() -> Iterator[None]:
    """Within the block, this thread compiles the kernels of each graph in few files."""
    guard_kernel_files()
    with _common.set():
        yield


@cache
def guard_kernel_files() -> None:
    """Let threads put the kernels of a graph into common files."""
    # The binding is written for GCC and Clang.
    if sys.platform != "win32" and CPU_KERNELS.usable() and KERNELS_READY.usable():
        replace(CPU_KERNELS, _put_off)
        replace(KERNELS_READY, _built_together)


def _put_off(compiles: Callable[..., Any]) -> Callable[..., Any]:
    def cpp_pybinding(*arguments: Any, **keywords: Any) -> Any:
        alone = partial(compiles, *arguments, **keywords)
        # The compiler itself, types and source; with more than that, torch compiles in a way that is not known here.
        if not _common or len(arguments) != 3 or keywords:
            return alone()
        return _Kernel(arguments[1], arguments[2], alone)

    return cpp_pybinding


def _built_together(waits: Callable[..., Any]) -> Callable[..., Any]:
    def wait(self: Any, scope: dict[str, Any]) -> Any:
        kernels = {name: value for name, value in scope.items() if isinstance(value, _Kernel)}
        if not kernels:
            return waits(self, scope)
        try:
            scope.update(zip(kernels, _functions(self, list(kernels.values()))))
        # Whatever it is, torch compiles each by itself, and says what is wrong with one of them.
        except Exception as error:
            logger.info("C++ kernels are compiled one by one: %s: %s", type(error).__name__, error)
            scope.update({name: kernel.alone() for name, kernel in kernels.items()})
        return waits(self, scope)

    return wait


def _functions(compiler: Any, kernels: Sequence[_Kernel]) -> list[Any]:
    """The kernels' functions, or futures of them, in order."""
    # Here and below: where torch has other names, kernels are compiled one by one.
    from torch._inductor.async_compile import get_compile_threads, kernel_code_log

    threads = get_compile_threads()
    parts = in_files(kernels, threads)
    # All are begun before the first is waited for.
    begun = [
        _bindings(0).load_async(file_of(part), submit_fn=compiler.submit if threads > 1 else None)
        if len(part) > 1
        else None
        for part in parts
    ]
    found: list[Any] = []
    for part, load in zip(parts, begun):
        if load is None:
            found += [kernel.alone() for kernel in part]
        else:
            for kernel in part:
                kernel_code_log.info("CPP+Bindings Kernel:\n%s", kernel.source)
            found += _loaded(load(), len(part))
    return found


def in_files(kernels: Sequence[_Kernel], threads: int) -> list[Sequence[_Kernel]]:
    """The kernels of each file, where so many compilers run at once."""
    count = max(min(threads, len(kernels) // FEW), math.ceil(len(kernels) / MANY), 1)
    ends = [len(kernels) * i // count for i in range(count + 1)]
    return [kernels[start:end] for start, end in pairwise(ends) if end > start]


def file_of(kernels: Sequence[_Kernel]) -> str:
    """The code of a file.

    Raises:
        ValueError: A kernel has not the one entry function that is looked for.
    """
    headers: dict[str, None] = {}
    bodies = []
    for number, kernel in enumerate(kernels):
        source, entries = _ENTRY.subn(rf"\1{_entry(number)}", kernel.source)
        if entries != 1:
            raise ValueError(f"a kernel with {entries} entry functions")
        code = _with_binding(source, kernel.types, _bindings(number))
        # Headers stand outside of all namespaces; the first one is the one that was compiled before.
        headers.update(dict.fromkeys(line.strip() for line in _INCLUDE.findall(code)))
        bodies.append(f"namespace file_{_entry(number)} {{\n{_INCLUDE.sub('', code)}\n}}\n")
    return "\n".join([*headers, *bodies])


def _entry(number: int) -> str:
    """Name of a kernel's function and module in its file."""
    return f"kernel_{number}"


@cache
def _bindings(number: int) -> Any:
    """torch's class of bindings, for a function and a module of another name."""
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    class Bindings(CppPythonBindingsCodeCache):
        entry_function = _entry(number)
        call_entry_function = CppPythonBindingsCodeCache.call_entry_function.replace("kernel(", f"{_entry(number)}(")

    return Bindings


def _with_binding(source: str, types: Sequence[str], bindings: Any) -> str:
    """A kernel's code, and torch's that makes a Python module of it."""
    written: list[str] = []

    class Outline(bindings):  # type: ignore[misc]
        @classmethod
        def load_async(cls, main_code: str, *_: Any, **__: Any) -> None:
            written.append(main_code)

    Outline.load_pybinding_async(types, source)
    return written[0]


def _loaded(first: ModuleType, count: int) -> list[Any]:
    """The functions of a file, of which torch loaded the first module."""
    key, path = first.__name__.rpartition(".")[0], str(first.__file__)
    modules = [first, *(_bindings(number)._load_library(path, key) for number in range(1, count))]
    return [getattr(module, _entry(number)) for number, module in enumerate(modules)]
