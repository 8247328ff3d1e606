"""What a user may set: the `options` of `torch.compile(backend="remat")` and the REMAT_* environment.

Every REMAT_* variable is read here and nowhere else.  An option given in the code wins over the
environment, which wins over the default.  Bytes are integers from here on: a fraction of a byte that a
string such as ``"1.3KiB"`` asks for is rounded down, so that the budget stays a promise.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal
from enum import Enum
from numbers import Integral, Real
from pathlib import Path
from typing import Final

from remat_compiler.errors import OptionError, suggestion

logger = logging.getLogger(__name__)

INNER_COMPILERS: Final = ("inductor", "eager")
COST_MODELS: Final = ("roofline", "measured", "nominal")
ON_INFEASIBLE: Final = ("error", "min")
VARIANTS: Final = ("auto", "always", "never")
ESTIMATORS: Final = ("symbolic", "quadratic")
ENVIRONMENT_VARIABLES: Final = ("REMAT_CACHE_DIR", "REMAT_DISABLE_CACHE", "REMAT_DUMP", "REMAT_PLANNER", "REMAT_VERIFY")

_UNIT_BYTES: Final = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)},
}
_BYTE_STRING: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:e\+?[0-9]{1,2})?)\s*([a-z]*)\s*", re.IGNORECASE | re.ASCII)
_LARGEST_BUDGET: Final = 2**63 - 1
_BUDGET_FORMS: Final = (
    'a positive int (bytes), a byte string such as "6GiB", "512 MB" or "1.5e9", '
    'a float in (0, 1] (fraction of the peak without a budget), "auto" or "min"'
)


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
        kind: Which of the other fields counts.
        limit_bytes: Bytes, for BYTES.
        fraction: Part of the unbudgeted peak, in (0, 1], for FRACTION.
    """

    kind: BudgetKind
    limit_bytes: int = 0
    fraction: float = 0.0

    @staticmethod
    def parse(value: object) -> MemoryBudget:
        """The budget that `value` names; OptionError when it names none.

        An int and a float mean different things: ``1`` is one byte, ``1.0`` the whole unbudgeted peak.
        """
        if isinstance(value, MemoryBudget):
            return value
        if isinstance(value, str):
            return _budget_of_string(value)
        if isinstance(value, bool) or not isinstance(value, Real):
            raise _bad_budget(value)
        if isinstance(value, Integral):
            return _budget_of_bytes(int(value), value)
        fraction = float(value)
        if not 0.0 < fraction <= 1.0:
            looks_like_bytes = 1024.0 <= fraction <= _LARGEST_BUDGET
            hint = f"; for bytes write {int(fraction)} or {str(int(fraction))!r}" if looks_like_bytes else ""
            raise _bad_budget(value, hint)
        return MemoryBudget(BudgetKind.FRACTION, fraction=fraction)

    def of_reference(self, reference_peak_bytes: int) -> int | None:
        """Bytes allowed where the unbudgeted step peaks at `reference_peak_bytes`; `None` for AUTO and MIN."""
        if self.kind is BudgetKind.BYTES:
            return self.limit_bytes
        if self.kind is BudgetKind.FRACTION:
            # A decimal product: 0.3 of 10 bytes is 3, not the 2 that binary rounding would leave.
            return int(Decimal(repr(self.fraction)) * reference_peak_bytes)
        return None

    def __str__(self) -> str:
        if self.kind is BudgetKind.BYTES:
            return f"{self.limit_bytes} bytes"
        return repr(self.fraction) if self.kind is BudgetKind.FRACTION else self.kind.value


@dataclass(frozen=True, slots=True)
class Environment:
    """The REMAT_* environment variables.

    Attributes:
        dump: REMAT_DUMP, folder to write dumps to, or `None`.
        planner: REMAT_PLANNER, planner where the code names none, or `None`.
        cache_dir: REMAT_CACHE_DIR, folder of plans and measured costs.
        disable_cache: REMAT_DISABLE_CACHE, neither read nor write that folder.
        verify: REMAT_VERIFY: 0 verifies nothing, 1 every plan that is applied, 2 also the captured graph and
            every candidate of a portfolio.
    """

    dump: Path | None
    planner: str | None
    cache_dir: Path
    disable_cache: bool
    verify: int

    @staticmethod
    def read(variables: Mapping[str, str] | None = None) -> Environment:
        """Read `variables` (default: of the process).  An empty value counts as not set."""
        given = {k: v for k, v in (os.environ if variables is None else variables).items() if v}
        for name in sorted(given):
            if name.startswith("REMAT_") and name not in ENVIRONMENT_VARIABLES:
                logger.warning("ignored environment variable %s%s", name, suggestion(name, ENVIRONMENT_VARIABLES))
        home = Path(given["XDG_CACHE_HOME"]) if "XDG_CACHE_HOME" in given else Path.home() / ".cache"
        return Environment(
            dump=Path(given["REMAT_DUMP"]) if "REMAT_DUMP" in given else None,
            planner=given.get("REMAT_PLANNER"),
            cache_dir=Path(given["REMAT_CACHE_DIR"]) if "REMAT_CACHE_DIR" in given else home / "remat",
            disable_cache=_one_of("REMAT_DISABLE_CACHE", given.get("REMAT_DISABLE_CACHE", "0"), ("0", "1")) == "1",
            verify=int(_one_of("REMAT_VERIFY", given.get("REMAT_VERIFY", "1"), ("0", "1", "2"))),
        )


@dataclass(frozen=True, slots=True)
class RematOptions:
    """The options of one compilation, checked.

    Attributes:
        memory_budget: Largest peak of a step; ``"auto"`` takes what the device has left.
        planner: Name of a registered planner.
        inner: Compiler of the planned graphs, one of `INNER_COMPILERS`.
        cost_model: Where times come from, one of `COST_MODELS`.
        dump: Folder to write graphs, plans and pictures to, or `None`.
        on_infeasible: ``"error"`` raises `InfeasibleBudget`, ``"min"`` takes the smallest peak with a warning.
        max_slowdown: Largest time of a step relative to the step without recomputation, at least 1, or `None`
            for no limit.
        time_limit: Seconds that planning one graph may take beyond a first quick plan, about, at least 0, or `None`
            for what the planner takes by itself (`auto`: 2).  `auto` turns them into an amount of work, so that
            every run and rank makes the same plan.
        variants: Where sizes change from call to call, whether a better variant of a graph is compiled: ``"auto"`` when
            it pays, ``"always"`` as soon as one would be faster, ``"never"``.  What a size needs to fit is compiled in
            any case.
        max_variants: How many variants of one graph there may be, at least 2.
        estimator: How the peak of a variant at other sizes is known: ``"symbolic"``, by the exact formula (learnt where
            there is none), or ``"quadratic"``, learnt from dry runs at the first sizes.  With the latter, what layers
            save is also measured in the first steps, which run by the variant of the smallest peak.
    """

    memory_budget: MemoryBudget = field(default_factory=lambda: MemoryBudget(BudgetKind.AUTO))
    planner: str = "auto"
    inner: str = "inductor"
    cost_model: str = "roofline"
    dump: Path | None = None
    on_infeasible: str = "error"
    max_slowdown: float | None = 2.0
    time_limit: float | None = None
    variants: str = "auto"
    max_variants: int = 6
    estimator: str = "symbolic"

    @staticmethod
    def parse(
        options: Mapping[str, object] | None = None,
        *,
        check_planner: Callable[[str], object],
        environment: Environment | None = None,
    ) -> RematOptions:
        """Options of the mapping that the user gave to `torch.compile`.

        Args:
            options: Names and values; `None` for none.
            check_planner: Raises (`UnknownName`) when no planner of that name is registered.
            environment: Environment variables; read from the process when `None`.

        Raises:
            OptionError: An option is unknown or its value malformed.
        """
        if options is not None and not isinstance(options, Mapping):
            raise OptionError(f"options must be a mapping of names to values, got {options!r}")
        given: dict[str, object] = dict(options or {})
        env = Environment.read() if environment is None else environment
        names = tuple(f.name for f in fields(RematOptions))
        for name in given:
            if name not in names:
                raise OptionError(f"unknown option {name!r}{suggestion(str(name), names)}")
        default = RematOptions()
        planner = given.get("planner", env.planner or default.planner)
        if not isinstance(planner, str) or not planner:
            raise OptionError(f"planner must be the name of a planner, got {planner!r}")
        check_planner(planner)
        return RematOptions(
            memory_budget=MemoryBudget.parse(given.get("memory_budget", default.memory_budget)),
            planner=planner,
            inner=_one_of("inner", given.get("inner", default.inner), INNER_COMPILERS),
            cost_model=_one_of("cost_model", given.get("cost_model", default.cost_model), COST_MODELS),
            dump=_path("dump", given.get("dump", env.dump)),
            on_infeasible=_one_of("on_infeasible", given.get("on_infeasible", default.on_infeasible), ON_INFEASIBLE),
            max_slowdown=_slowdown(given.get("max_slowdown", default.max_slowdown)),
            time_limit=_seconds("time_limit", given.get("time_limit", default.time_limit)),
            variants=_one_of("variants", given.get("variants", default.variants), VARIANTS),
            max_variants=_count("max_variants", given.get("max_variants", default.max_variants), least=2),
            estimator=_one_of("estimator", given.get("estimator", default.estimator), ESTIMATORS),
        )


def format_bytes(num_bytes: int) -> str:
    """`num_bytes` as a person reads it, in binary units: ``"18.2 MiB"``."""
    if abs(num_bytes) < 1024:
        return f"{num_bytes} B"
    size = float(num_bytes)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        # Rounded before it is compared, so that 1023.96 KiB reads as 1.0 MiB, never as 1024.0 KiB.
        if round(abs(size), 1) < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def parse_bytes(text: str) -> int:
    """Bytes that a string such as ``"6GiB"``, ``"512 MB"`` or ``"1.5e9"`` names; OptionError when it names none."""
    match = _BYTE_STRING.fullmatch(text)
    if match is None:
        raise _bad_budget(text)
    number, unit = Decimal(match.group(1)), match.group(2)
    if unit.lower() not in _UNIT_BYTES:
        units = ("B", "KB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB")
        raise _bad_budget(text, f"; unknown unit {unit!r}{suggestion(unit, units)}")
    size = number * _UNIT_BYTES[unit.lower()]
    if 0 < size < 1:
        raise _bad_budget(text, f"; for a fraction write the number {number} without quotes")
    return _budget_of_bytes(int(size), text).limit_bytes


def _budget_of_string(text: str) -> MemoryBudget:
    """`MemoryBudget.parse` of a string."""
    word = text.strip().lower()
    if word in (BudgetKind.AUTO.value, BudgetKind.MIN.value):
        return MemoryBudget(BudgetKind(word))
    if word.isalpha():
        raise _bad_budget(text, suggestion(word, (BudgetKind.AUTO.value, BudgetKind.MIN.value)))
    return MemoryBudget(BudgetKind.BYTES, limit_bytes=parse_bytes(text))


def _budget_of_bytes(num_bytes: int, value: object) -> MemoryBudget:
    """A budget of `num_bytes`, which the user wrote as `value`."""
    if num_bytes <= 0:
        raise _bad_budget(value, '; for the smallest reachable peak write "min"')
    if num_bytes > _LARGEST_BUDGET:
        raise _bad_budget(value, f"; the largest budget is {_LARGEST_BUDGET} bytes")
    return MemoryBudget(BudgetKind.BYTES, limit_bytes=num_bytes)


def _bad_budget(value: object, hint: str = "") -> OptionError:
    """The error for a malformed budget."""
    return OptionError(f"memory_budget must be {_BUDGET_FORMS}, got {value!r}{hint}")


def _one_of(name: str, value: object, allowed: Iterable[str]) -> str:
    """`value`, when it is one of the `allowed` words."""
    words = tuple(allowed)
    if not isinstance(value, str):
        raise OptionError(f"{name} must be one of {', '.join(map(repr, words))}, got {value!r}")
    if value not in words:
        raise OptionError(f"unknown {name} {value!r}{suggestion(value, words)}")
    return value


def _path(name: str, value: object) -> Path | None:
    """`value` as a path, `None` for none."""
    if value is None:
        return None
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise OptionError(f"{name} must be the path of a folder or None, got {value!r}")
    return Path(os.fsdecode(value)).expanduser()


def _slowdown(value: object) -> float | None:
    """`value` as a limit of the step's relative time, `None` for no limit."""
    if value is None or (isinstance(value, Real) and float(value) == math.inf):
        return None
    limit = _positive("max_slowdown", value)
    if limit < 1.0:
        raise OptionError(f"max_slowdown must be at least 1.0 (times the step), or None for no limit, got {value!r}")
    return limit


def _positive(name: str, value: object) -> float:
    """`value` as a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0.0 < float(value) < math.inf:
        raise OptionError(f"{name} must be a finite number above 0, got {value!r}")
    return float(value)


def _count(name: str, value: object, least: int) -> int:
    """`value` as a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise OptionError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return int(value)


def _seconds(name: str, value: object) -> float | None:
    """`value` as a finite number of at least 0, or `None`."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real) or not 0.0 <= float(value) < math.inf:
        raise OptionError(f"{name} must be a finite number of at least 0, or None, got {value!r}")
    return float(value)
