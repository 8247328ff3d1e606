"""Problems in files: the JSON of `json_form`, plain or packed by gzip.

The same problem gives the same bytes, since the gzip header holds neither a name nor a time.
"""

from __future__ import annotations

import gzip
import io
import zlib
from dataclasses import replace
from pathlib import Path

from remat_compiler.errors import FormatError
from remat_compiler.ir.json_form import dumps, loads
from remat_compiler.ir.problem import RematProblem

PACKED = ".gz"
"""Suffix of packed files."""
_GZIP_MAGIC = b"\x1f\x8b"


def read_problem(path: Path) -> RematProblem:
    """The problem in the file `path`.

    Raises:
        FormatError: The file holds none; the message begins with its name and says what to do.
        OSError: The file cannot be read.
    """
    data = path.read_bytes()
    try:
        return loads(RematProblem, unpack(data))
    except FormatError as error:
        problem = error.problem
        if not data:
            problem = "the file is empty; copy it or write it again"
        # The likely slip is a wrong name or a damaged copy, which a message about JSON would not suggest.
        elif path.suffix == PACKED and not data.startswith(_GZIP_MAGIC):
            problem += f"; the name ends in {PACKED}, yet the file is not packed by gzip: it begins with {data[:8]!r}"
        raise FormatError(f"{path.name} {error.place}", problem) from error


def write_problem(path: Path, problem: RematProblem) -> None:
    """Write `problem` to `path`, packed if its name ends in ``.gz``."""
    text = dumps(problem).encode()
    path.write_bytes(pack(text) if path.suffix == PACKED else text)


def pack(text: bytes) -> bytes:
    """`text` by gzip, without name and time."""
    packed = io.BytesIO()
    # A name or a time in the header would make equal problems differ.
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=packed, mtime=0) as file:
        file.write(text)
    return packed.getvalue()


def unpack(data: bytes) -> bytes:
    """The text that `data` holds, packed or not.

    Raises:
        FormatError: `data` is packed, and damaged.
    """
    if not data.startswith(_GZIP_MAGIC):
        return data
    try:
        return gzip.decompress(data)
    except (EOFError, OSError, zlib.error) as error:
        what = f"the file is packed by gzip and damaged or cut off after {len(data)} bytes ({error})"
        raise FormatError("$", f"{what}; copy it or write it again") from error


def without_sources(problem: RematProblem) -> RematProblem:
    """`problem` without graph nodes and source lines, which no planner reads and which take most room."""
    ops = tuple(replace(op, nodes=(), source="") for op in problem.graph.ops)
    return replace(problem, graph=replace(problem.graph, ops=ops))
