"""The largest peak that a step may have, as the user wrote it: bytes, a part of the unbudgeted peak, or a word."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import Enum
from numbers import Integral, Real
from typing import Final

from remat_compiler.errors import OptionError, suggestion
from remat_compiler.option_values import as_float, shown
from remat_compiler.units import part_of

# "MB" is a million bytes and "MiB" 2**20, as their standards say; "M" is the latter, as for Docker and Slurm.  Letters
# may be of either case.
_UNIT_BYTES: Final = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgtpe", 1)},
    **{f"{letter}{end}": 1024**power for power, letter in enumerate("kmgtpe", 1) for end in ("ib", "")},
}
# At most two digits of exponent: a larger one is no number of bytes, and would fill memory once made an integer.
_BYTE_STRING: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:e\+?[0-9]{1,2})?)\s*([a-z]*)\s*", re.IGNORECASE | re.ASCII)
LARGEST_BUDGET: Final = 2**63 - 1
_BUDGET_FORMS: Final = (
    'a positive int (bytes), a byte string such as "6GiB", "6G" (which is the same), "512 MB" or "1.5e9", '
    'a float in (0, 1] or a percentage such as "50%" (part of the peak without a budget), "auto" or "min"'
)
_FRACTION: Final = re.compile(r"(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]{1,2})?", re.IGNORECASE | re.ASCII)
_PERCENT: Final = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)\s*%", re.ASCII)
_LIKELY_PERCENT: Final = 100
"""Most bytes of a budget that is likely meant as a part of the peak, in percent or as the whole."""


class BudgetKind(str, Enum):
    """How a memory budget is given."""

    BYTES = "bytes"
    FRACTION = "fraction"
    AUTO = "auto"
    MIN = "min"


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """The largest peak that a step may have, as the user said it.

    Attributes:
        kind: The form in which it is given, which says which of the other fields counts.
        limit_bytes: Bytes, for BYTES.
        fraction: Part of the unbudgeted peak, in (0, 1], for FRACTION.
        written: The user's own text, ignored in comparisons: two budgets that mean the same are equal.
    """

    kind: BudgetKind
    limit_bytes: int = 0
    fraction: float = 0.0
    written: str = field(default="", compare=False)

    @staticmethod
    def parse(value: object) -> MemoryBudget:
        """The budget that `value` names; OptionError if it names none.

        An int and a float mean different things: ``1`` is one byte, ``1.0`` the whole unbudgeted peak.  So they do as
        text, which is all that a command line, a variable or a file has.
        """
        if isinstance(value, MemoryBudget):
            return value
        if isinstance(value, str):
            budget = _budget_of_string(value)
            return replace(budget, written=value.strip() if budget.kind is BudgetKind.FRACTION else repr(value))
        # `True` would otherwise count as a budget of one byte.
        if isinstance(value, bool) or not isinstance(value, Real):
            left_out = "; leave it out for what the device has left, or write 1.0 for the peak without a budget"
            raise _bad_budget(value, left_out if value is None else "")
        if isinstance(value, Integral):
            return replace(_budget_of_bytes(int(value), value), written=shown(int(value)))
        fraction = as_float(value)
        if not 0.0 < fraction <= 1.0:
            # Most likely `6e9`, a float that was meant as bytes.
            looks_like_bytes = 1024.0 <= fraction <= LARGEST_BUDGET
            hint = f"; for bytes write {int(fraction)} or {str(int(fraction))!r}" if looks_like_bytes else ""
            if 2.0 <= fraction <= _LIKELY_PERCENT:
                hint = f"; for {fraction:g} % of the peak without a budget write {fraction / 100:g}"
            raise _bad_budget(value, hint)
        return MemoryBudget(BudgetKind.FRACTION, fraction=fraction, written=repr(fraction))

    @property
    def named_bytes(self) -> int | None:
        """The bytes that the user named; `None` if the budget follows from the device, or from the step itself."""
        return self.limit_bytes if self.kind is BudgetKind.BYTES else None

    @property
    def part(self) -> float | None:
        """The part of the unbudgeted peak; `None` if the budget is no part of it."""
        return self.fraction if self.kind is BudgetKind.FRACTION else None

    @property
    def has_number(self) -> bool:
        """Whether the user named bytes or a part, rather than a word."""
        return self.kind in (BudgetKind.BYTES, BudgetKind.FRACTION)

    @property
    def minimises(self) -> bool:
        """Whether the smallest peak is asked for, which is no limit."""
        return self.kind is BudgetKind.MIN

    @property
    def is_measured(self) -> bool:
        """Whether the limit is what the device has left."""
        return self.kind is BudgetKind.AUTO

    @property
    def is_part(self) -> bool:
        """Whether it is relative, and less than all of the unbudgeted peak."""
        return self.minimises or (self.kind is BudgetKind.FRACTION and self.fraction < 1.0)

    def of_reference(self, reference_peak_bytes: int) -> int | None:
        """The limit in bytes if the unbudgeted step peaks at `reference_peak_bytes`; `None` for AUTO and MIN."""
        return self.named_bytes if self.part is None else part_of(self.part, reference_peak_bytes)

    @property
    def asked(self) -> str:
        """The user's own text, as a part of a message."""
        written = self.written or str(self)
        if self.kind is BudgetKind.FRACTION:
            return f"{written} of the peak without a budget"
        has_unit = any(letter.isalpha() for letter in written)
        if self.kind is BudgetKind.BYTES and self.limit_bytes <= _LIKELY_PERCENT and not has_unit:
            part = f"{self.limit_bytes / 100} is a part of the peak without a budget"
            return f"{written} (which is bytes: {part}{', 1.0 all of it' if self.limit_bytes == 1 else ''})"
        return written

    def __str__(self) -> str:
        if self.kind is BudgetKind.BYTES:
            return f"{self.limit_bytes} bytes"
        return repr(self.fraction) if self.kind is BudgetKind.FRACTION else self.kind.value


def parse_bytes(text: str) -> int:
    """Bytes that a string such as ``"6GiB"``, ``"512 MB"`` or ``"1.5e9"`` names; OptionError if it names none."""
    match = _BYTE_STRING.fullmatch(text)
    if match is None:
        raise _bad_budget(text)
    number, unit = Decimal(match.group(1)), match.group(2)
    if unit.lower() not in _UNIT_BYTES:
        units = ("B", *(f"{letter}{end}" for end in ("B", "iB", "") for letter in "KMGTPE"))
        raise _bad_budget(text, f"; unknown unit {unit!r}{suggestion(unit, units)}")
    # Decimals, so that no digit of the string is lost.
    size = number * _UNIT_BYTES[unit.lower()]
    if 0 < size < 1:
        raise _bad_budget(text, "; the least is 1 byte")
    return _budget_of_bytes(int(size), text).limit_bytes


def _budget_of_string(text: str) -> MemoryBudget:
    """`MemoryBudget.parse` of a string."""
    word = text.strip().lower()
    if word in (BudgetKind.AUTO.value, BudgetKind.MIN.value):
        return MemoryBudget(BudgetKind(word))
    if word.isalpha():
        raise _bad_budget(text, suggestion(word, (BudgetKind.AUTO.value, BudgetKind.MIN.value)))
    # Text has no types, so the point tells ``1.0``, the whole peak, from ``1``, one byte.
    percent = _PERCENT.fullmatch(word)
    part = Decimal(percent.group(1)) / 100 if percent else Decimal(word) if _FRACTION.fullmatch(word) else None
    if part is not None and (percent or part <= 1):
        if not 0 < float(part) <= 1:
            raise _bad_budget(text, "; a part is above 0 and at most 1.0 or 100 %")
        return MemoryBudget(BudgetKind.FRACTION, fraction=float(part))
    return MemoryBudget(BudgetKind.BYTES, limit_bytes=parse_bytes(text))


def _budget_of_bytes(num_bytes: int, value: object) -> MemoryBudget:
    """A budget of `num_bytes`, which the user wrote as `value`."""
    if num_bytes <= 0:
        raise _bad_budget(value, '; for the smallest reachable peak write "min"')
    if num_bytes > LARGEST_BUDGET:
        raise _bad_budget(value, f"; the largest budget is {LARGEST_BUDGET} bytes")
    return MemoryBudget(BudgetKind.BYTES, limit_bytes=num_bytes)


def _bad_budget(value: object, hint: str = "") -> OptionError:
    """The error for a malformed budget."""
    return OptionError(f"memory_budget must be {_BUDGET_FORMS}, got {shown(value)}{hint}")
