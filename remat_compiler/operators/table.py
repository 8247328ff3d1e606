"""The table itself: the row of an operator by its name, and the digest of all rows.

An operator that has no row is one of which torch's own schema and tags tell all that is known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache

from remat_compiler.operators import arithmetic, kernels, memory
from remat_compiler.operators.row import Row

FILES = (arithmetic, kernels, memory)
NO_FACTS = Row("")


def rows_by_name(rows: Iterable[Row]) -> dict[str, Row]:
    """Each operator's row, with its name and namespace alone as `names`.

    Raises:
        ValueError: An operator stands in two rows.
    """
    found: dict[str, Row] = {}
    for row in rows:
        for name in row.names.split():
            full = name if "::" in name else f"aten::{name}"
            if full in found:
                raise ValueError(f"{full} has two rows in the table of operators; make one of them")
            found[full] = replace(row, names=full)
    return found


TABLE: Mapping[str, Row] = rows_by_name(row for file in FILES for row in file.ROWS)
_BEGINNINGS = {name.removesuffix("*"): row for name, row in TABLE.items() if name.endswith("*")}


@cache
def row_of(name: str) -> Row:
    """The row of ``ns::name`` or ``ns::name.overload``; `NO_FACTS` if the table has none."""
    operator = name.partition(".")[0]
    # The closest first: a row of the overload, of the operator, and, for a form in place, of the operator that is not.
    for one in (name, operator, operator.removesuffix("_")):
        if one in TABLE:
            return TABLE[one]
    return next((row for start, row in _BEGINNINGS.items() if name.startswith(start)), NO_FACTS)


def digest_of(table: Mapping[str, Row]) -> str:
    """Text that is equal for tables of equal facts: a part of the keys of all that was measured or planned by them."""
    text = "\n".join(repr(table[name]) for name in sorted(table))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


DIGEST = digest_of(TABLE)


def family_of(name: str) -> str:
    """The family, of any library and device, whose rate is measured for all; empty for products and other operators."""
    backward = "_backward" if "backward" in name else ""
    if "convolution" in name:
        return f"convolution{backward}"
    return f"attention{backward}" if "attention" in name else ""
