"""Several C++ kernels of a graph in one file, so that the compiler runs once for all of them.

Inductor writes a file for each kernel that runs on a CPU.  Starting the compiler, reading the headers and linking take
about a second, a kernel a tenth; and planned graphs have more kernels, since a loop ends where memory is freed.

    one file    namespace 0: kernel_0 and its Python module | namespace 1: kernel_1 and its Python module | ...

Each kernel keeps the binding that torch writes for it; Python loads the modules of one file by their names.  Where
anything differs from what is expected here, kernels are compiled one by one, as torch does.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from types import ModuleType
from typing import Any

from remat_compiler.torch_compat.patches import CPU_KERNELS, KERNELS_READY
from remat_compiler.torch_compat.patching import replace

logger = logging.getLogger(__name__)

FEW, MANY = 8, 64
"""Kernels of a file: where several compilers run at once, at least so many are worth one; and the most of any file."""

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*(?:include|define PY_SSIZE_T_CLEAN)\b.*$", re.MULTILINE)
_ENTRY = re.compile(r'(extern\s+"C"\s+void\s+)kernel(?=\s*\()')

# By thread: other threads compile graphs of their own meanwhile.
_common = threading.local()


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
    before = getattr(_common, "active", False)
    _common.active = True
    try:
        yield
    finally:
        _common.active = before


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
        if not getattr(_common, "active", False) or len(arguments) != 3 or keywords:
            return alone()
        return _Kernel(arguments[1], arguments[2], alone)

    return cpp_pybinding


def _built_together(waits: Callable[..., Any]) -> Callable[..., Any]:
    def wait(self: Any, scope: dict[str, Any]) -> Any:
        kernels = {name: value for name, value in scope.items() if isinstance(value, _Kernel)}
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
    from torch._inductor.async_compile import get_compile_threads
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    class KernelFile(CppPythonBindingsCodeCache):
        entry_function = _entry(0)

    threads = get_compile_threads()
    parts = in_files(kernels, threads)
    # All are begun before the first is waited for.
    begun = [
        KernelFile.load_async(file_of(part), submit_fn=compiler.submit if threads > 1 else None)
        if len(part) > 1
        else None
        for part in parts
    ]
    found: list[Any] = []
    for part, load in zip(parts, begun):
        if load is None:
            found += [kernel.alone() for kernel in part]
        else:
            first = load()
            found += [getattr(_module(first, _entry(i)), _entry(i)) for i in range(len(part))]
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
        code = source + _binding(kernel, _entry(number))
        # Headers stand outside of all namespaces; the first one is the one that was compiled before.
        headers.update(dict.fromkeys(line.strip() for line in _INCLUDE.findall(code)))
        bodies.append(f"namespace file_{_entry(number)} {{\n{_INCLUDE.sub('', code)}\n}}\n")
    return "\n".join([*headers, *bodies])


def _entry(number: int) -> str:
    """Name of a kernel's function and module in its file."""
    return f"kernel_{number}"


def _binding(kernel: _Kernel, entry: str) -> str:
    """The code of torch's that makes a Python module of a kernel."""
    from torch._inductor.codecache import CppPythonBindingsCodeCache as Bindings

    read = (f"parse_arg<{kind.replace('const ', '')}>(args, {n})" for n, kind in enumerate(kernel.types))
    call = Bindings.call_entry_function.format(", ".join(read)).replace("kernel(", f"{entry}(", 1)
    return Bindings.suffix_template.format(
        arg_len=len(kernel.types), call_entry_func=call, entry_func=entry, extra_parse_arg=Bindings.extra_parse_arg
    )


def _module(first: ModuleType, entry: str) -> ModuleType:
    """The module of a kernel in the file of `first`."""
    key, _, name = first.__name__.rpartition(".")
    if name == entry:
        return first
    spec = importlib.util.spec_from_file_location(f"{key}.{entry}", str(first.__file__))
    if spec is None or spec.loader is None:
        raise ImportError(f"{first.__file__} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
