"""Everything that a user can set: the `options` of `torch.compile(backend="remat")` and the REMAT_* environment.

Every REMAT_* variable is read here and nowhere else.  An option given in the code wins over the
environment, which wins over the default.  Bytes are integers from here on: a fraction of a byte that a
string such as ``"1.3KiB"`` asks for is rounded down, so that the budget stays a promise.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from numbers import Integral
from pathlib import Path
from typing import Any, Final, Literal, TypedDict

from remat_compiler.errors import OptionError, UnknownName, suggestion
from remat_compiler.log import logger_of
from remat_compiler.memory_budget import LARGEST_BUDGET, BudgetKind, MemoryBudget, parse_bytes
from remat_compiler.option_values import (
    AS_PLANNED,
    chunks,
    count,
    folder,
    number_text,
    one_of,
    seconds,
    shown,
    slowdown,
    switch,
)

logger = logger_of(__name__)

INNER_COMPILERS: Final = ("inductor", "eager")
COST_MODELS: Final = ("roofline", "measured", "nominal")
ON_INFEASIBLE: Final = ("error", "min")
ESTIMATORS: Final = ("symbolic", "quadratic")
LAYOUTS: Final = ("plain", "planned")
BUDGETS_OF: Final = ("allocated", "reserved")
OUTPUTS: Final = ("all", "loss")
OFFLOAD_TIERS: Final = ("auto", "host", "disk")
ONLY_SHOWN: Final = ("dump",)
"""Options that change only what is shown to a person: plans and stored outcomes are the same under all their values."""
PREFIX: Final = "REMAT_"
ONLY_IN_ENVIRONMENT: Final = ("REMAT_CACHE_DIR", "REMAT_DISABLE_CACHE", "REMAT_VERIFY")
"""Variables that no option corresponds to; each option also has a variable of its own name, see `variable_of`."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The REMAT_* environment variables.

    Attributes:
        cache_dir: REMAT_CACHE_DIR, folder of plans and measured costs; `None` if none is named and the process has no
            home directory.
        disable_cache: REMAT_DISABLE_CACHE, neither read nor write that folder.
        verify: REMAT_VERIFY: 0 verifies nothing, 1 every plan that is applied, 2 also the captured graph and
            every plan that a planner answers with, applied or not.
        options: Text of each option that has its variable set, by the option's name.
    """

    cache_dir: Path | None
    disable_cache: bool = False
    verify: int = 1
    options: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def read(variables: Mapping[str, str] | None = None) -> Environment:
        """Read `variables` (default: of the process).  An empty value counts as not set."""
        given = {k: v for k, v in (os.environ if variables is None else variables).items() if v}
        of_options = {variable_of(f.name): f.name for f in fields(RematOptions) if f.name != "inductor"}
        allowed = (*sorted(of_options), *ONLY_IN_ENVIRONMENT)
        # A misspelt variable would have no effect without a word.
        for name in sorted(given):
            if name.startswith(PREFIX) and name not in allowed:
                logger.warning("ignored environment variable %s%s", name, suggestion(name, allowed, PREFIX))
        cache_dir = folder("REMAT_CACHE_DIR", given.get("REMAT_CACHE_DIR"))
        disabled = one_of("REMAT_DISABLE_CACHE", given.get("REMAT_DISABLE_CACHE", "0"), ("0", "1")) == "1"
        return Environment(
            cache_dir=cache_dir or (None if disabled else _default_cache(given.get("XDG_CACHE_HOME"))),
            disable_cache=disabled,
            verify=int(one_of("REMAT_VERIFY", given.get("REMAT_VERIFY", "1"), ("0", "1", "2"))),
            options={option: given[variable] for variable, option in of_options.items() if variable in given},
        )


def variable_of(option: str) -> str:
    """The environment variable of an option."""
    return f"{PREFIX}{option.upper()}"


def _default_cache(xdg_cache_home: str | None) -> Path | None:
    """The cache folder if none is named; `None`, with one warning, if the process has no home directory."""
    if xdg_cache_home is not None:
        return Path(xdg_cache_home) / "remat"
    try:
        return Path.home() / ".cache" / "remat"
    except RuntimeError as error:
        _warn_of_no_home(str(error))
        return None


@cache
def _warn_of_no_home(error: str) -> None:
    logger.warning("plans and measured costs are not kept: %s; name a folder by REMAT_CACHE_DIR", error.rstrip("."))


class Options(TypedDict, total=False):
    """What ``torch.compile(model, backend="remat", options=...)`` takes: a type for editors and type checkers.

        options: remat_compiler.Options = {"memory_budget": "6GiB", "inner": "eager"}

    It is a plain dictionary as the program runs.  Settings of Inductor, which may stand among the options, are no part
    of the type.
    """

    memory_budget: int | float | str
    planner: str
    inner: Literal["inductor", "eager"]
    cost_model: Literal["roofline", "measured", "nominal"]
    dump: str | os.PathLike[str] | None
    on_infeasible: Literal["error", "min"]
    max_slowdown: float | None
    time_limit: float | None
    max_variants: int
    estimator: Literal["symbolic", "quadratic"]
    budget_of: Literal["allocated", "reserved"]
    layout: Literal["plain", "planned"]
    inplace_buffers: bool
    chunks: int | Literal["auto", "never"]
    outputs: Literal["all", "loss"]
    offload_budget: int | str
    offload_tier: Literal["auto", "host", "disk"]
    offload_dir: str | os.PathLike[str] | None
    offload_direct: bool


Check = Callable[[str, object], object]
"""Returns the value of an option, which it gets with the option's name, in its final type, or raises `OptionError`."""


def _by(check: Check, read: Callable[[str], object] = str) -> Mapping[str, Any]:
    """The check of an option, and what makes a value of the text of its variable; in the metadata of its field."""
    return {"check": check, "read": read}


def _word(allowed: Sequence[str]) -> Mapping[str, Any]:
    """The check of an option that is one of the `allowed` words."""
    return _by(partial(one_of, allowed=allowed))


def _switch_text(text: str) -> object:
    """The bool in a text, else the text itself, which the check refuses."""
    return {"1": True, "true": True, "0": False, "false": False}.get(text.strip().lower(), text)


def _offload_bytes(name: str, value: object) -> int:
    """Bytes that may be off the device; `None` is 0."""
    if value is None or (isinstance(value, str) and value.strip().lower() in ("none", "0")):
        return 0
    if isinstance(value, str):
        with suppress(OptionError):  # whose words are of the other budget
            return parse_bytes(value)
    # `True` would otherwise be one byte.
    elif not isinstance(value, bool) and isinstance(value, Integral) and 0 <= int(value) <= LARGEST_BUDGET:
        return int(value)
    raise OptionError(
        f'{name} must be an int of at least 0 (bytes), a byte string such as "16GiB", or None to move nothing, '
        f"got {shown(value)}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """The options that plans and emitted code depend on, so that each request for a partition has them, too.

    Attributes:
        planner: Name of a registered planner.
        inner: Compiler of the planned graphs, one of `INNER_COMPILERS`.
        cost_model: Where times come from, one of `COST_MODELS`.
        max_slowdown: Largest time of a step relative to the step without recomputation, at least 1, or `None`
            for no limit.
        time_limit: Approximate seconds that planning one graph may take beyond a first quick plan, at least 0, or
            `None` for the planner's own default (`auto`: more the larger the graph, up to 5 for 1,000 operators).
            `auto` turns them into an amount of work, so that every run and rank makes the same plan.
        budget_of: What the budget covers: what is ``"allocated"`` at once, or what torch's caching allocator has
            ``"reserved"`` for the step, by a model of it.
        layout: Where values lie in memory: ``"plain"`` for where torch's allocator puts each, or ``"planned"`` for
            planned offsets of a few tensors, if Inductor compiles and less is reserved so, by the allocator's model.
        inplace_buffers: Whether an operator may write its result into the memory of an argument whose life ends there.
            With Inductor it stands for Inductor's own setting of that name, if the code gives it.
        chunks: Most chunks in which the loss of a large product, as of a vocabulary's logits, is computed with its
            gradients; 1 (``"never"``) leaves every operator whole, `AS_PLANNED` (``"auto"``) lets the plan say, for
            layers with large values, too.
    """

    planner: str = field(
        default="auto", metadata=_by(lambda name, value: value)
    )  # checked where the planners are known
    inner: str = field(default="inductor", metadata=_word(INNER_COMPILERS))
    cost_model: str = field(default="roofline", metadata=_word(COST_MODELS))
    max_slowdown: float | None = field(default=2.0, metadata=_by(slowdown, number_text))
    time_limit: float | None = field(default=None, metadata=_by(seconds, number_text))
    budget_of: str = field(default="allocated", metadata=_word(BUDGETS_OF))
    layout: str = field(default="plain", metadata=_word(LAYOUTS))
    inplace_buffers: bool = field(default=True, metadata=_by(switch, _switch_text))
    chunks: int = field(default=AS_PLANNED, metadata=_by(lambda name, value: chunks(value), number_text))


@dataclass(frozen=True, slots=True, kw_only=True)
class RematOptions(PlanOptions):
    """The options of one compilation, checked: those of `PlanOptions`, and more.

    Attributes:
        memory_budget: Largest peak of a step; ``"auto"`` takes what the device has left.
        dump: Folder to write graphs, plans and pictures to, or `None`.
        on_infeasible: ``"error"`` raises `InfeasibleBudget`, ``"min"`` takes the smallest peak with a warning.
        max_variants: Largest number of variants of one graph, at least 2, if sizes change from call to call.
        estimator: How the peak of a variant at other sizes is found: ``"symbolic"``, by the exact formula (learnt from
            dry runs if there is none), or ``"quadratic"``, learnt from dry runs at the first sizes.  With the latter,
            the bytes that layers save are also measured in the first steps, which run by the variant of the smallest
            peak.
        outputs: What the program that trains reads of its results: ``"all"``, or the ``"loss"``, so that other results
            through which a gradient could come back, such as logits, are not computed; who reads one gets an error.
        offload_budget: Most bytes that values moved off the device may take where they are moved to; 0 moves nothing.
        offload_tier: Where they are moved to: ``"host"`` memory, a file on a ``"disk"``, or ``"auto"``: to host memory
            from an accelerator, to a disk from a CPU.
        offload_dir: Folder of that file, or `None` for the system's folder for temporary files.
        offload_direct: Whether copies to and from that file pass by the system's cache of files (direct I/O).
        inductor: Names and values of Inductor's own settings among the options; sorted.
    """

    memory_budget: MemoryBudget = field(
        default=MemoryBudget(BudgetKind.AUTO), metadata=_by(lambda name, value: MemoryBudget.parse(value))
    )
    dump: Path | None = field(default=None, metadata=_by(folder))
    on_infeasible: str = field(default="error", metadata=_word(ON_INFEASIBLE))
    max_variants: int = field(default=6, metadata=_by(partial(count, least=2), number_text))
    estimator: str = field(default="symbolic", metadata=_word(ESTIMATORS))
    outputs: str = field(default="all", metadata=_word(OUTPUTS))
    offload_budget: int = field(default=0, metadata=_by(_offload_bytes))
    offload_tier: str = field(default="auto", metadata=_word(OFFLOAD_TIERS))
    offload_dir: Path | None = field(default=None, metadata=_by(folder))
    offload_direct: bool = field(default=False, metadata=_by(switch, _switch_text))

    inductor: tuple[tuple[str, Any], ...] = ()

    @property
    def of_plans(self) -> dict[str, Any]:
        """The names and values that a request for a partition has, too."""
        return {one.name: getattr(self, one.name) for one in fields(PlanOptions)}

    @staticmethod
    def parse(
        options: Mapping[str, object] | None = None,
        *,
        check_planner: Callable[[str], object],
        environment: Environment | None = None,
        is_inductors: Callable[[str, object], bool] = lambda name, value: False,
    ) -> RematOptions:
        """Options of the mapping that the user gave to `torch.compile`.

        Args:
            options: Names and values; `None` for none.
            check_planner: Raises `UnknownName` if no planner of that name is registered.
            environment: Environment variables; read from the process if `None`.
            is_inductors: Whether a name is one of Inductor's settings; raises `OptionError` if its value is wrong.

        Raises:
            OptionError: An option is unknown or its value malformed.
        """
        if options is not None and not isinstance(options, Mapping):
            raise OptionError(f"options must be a mapping of names to values, got {shown(options)}")
        given: dict[Any, object] = dict(options or {})
        env = Environment.read() if environment is None else environment
        declared = {one.name: one.metadata for one in fields(RematOptions) if one.metadata}
        checks: dict[str, Check] = {name: one["check"] for name, one in declared.items()}
        checks["planner"] = partial(_planner, check_planner)
        settings = {n: v for n, v in given.items() if n not in checks and isinstance(n, str) and is_inductors(n, v)}
        for name in given:
            if name not in checks and name not in settings:
                allowed = tuple(Options.__annotations__)
                raise OptionError(f"unknown option {shown(name)}{suggestion(str(name), allowed)}")
        # A variable is not even checked if the code gives the option.
        values: dict[str, Any] = {
            name: _from_text(name, text, declared[name]["read"], checks[name])
            for name, text in env.options.items()
            if name not in given
        }
        values |= {name: check(name, given[name]) for name, check in checks.items() if name in given}
        checked = replace(RematOptions(), **values)
        if settings and checked.inner != "inductor":
            raise OptionError(
                f"option {min(settings)!r} is one of Inductor's, and inner is {checked.inner!r}; leave it out"
            )
        # Inductor has a setting of this name, too, which is what a user of Inductor means by it.
        shared = {name: getattr(checked, name) for name in ("inplace_buffers",) if name in given}
        if checked.inner == "inductor":
            settings |= {name: value for name, value in shared.items() if is_inductors(name, value)}
        return replace(checked, inductor=tuple(sorted(settings.items())))


def _planner(check: Callable[[str], object], name: str, value: object) -> str:
    """`value` if it names a planner."""
    if not isinstance(value, str) or not value:
        raise OptionError(f"{name} must be the name of a planner, got {shown(value)}")
    check(value)
    return value


def _from_text(name: str, text: str, read: Callable[[str], object], check: Check) -> object:
    """The value of the option `name` whose variable holds `text`.

    Raises:
        OptionError: The text is no such value; the message names the variable.
        UnknownName: It names a planner that is not registered; the message names the variable, too.
    """
    try:
        return check(name, read(text))
    except OptionError as error:
        raise OptionError(f"{variable_of(name)}={shown(text)}: {error}") from error
    except UnknownName as error:
        raise UnknownName(error.kind, error.name, error.allowed, f"the variable {variable_of(name)}") from error
