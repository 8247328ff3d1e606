"""One change of torch: its target, its reason, and whether the installed torch has and needs it."""

from __future__ import annotations

import enum
import importlib
import inspect
from dataclasses import dataclass
from functools import cache
from typing import Any

from remat_compiler.errors import UnsupportedTorch
from remat_compiler.log import logger_of
from remat_compiler.version import TESTED_TORCH

logger = logger_of(__name__)


class Purpose(enum.Enum):
    """The purpose of a change of torch."""

    CORRECTNESS = "correctness"
    SPEED = "speed"


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a target.

    Attributes:
        owner: Module, class or configuration that has it.
        attribute: Its name there.
        value: Its present value; `None` for a field that only instances have.
    """

    owner: Any
    attribute: str
    value: Any


@dataclass(frozen=True, slots=True)
class Patch:
    """One change of torch.

    Attributes:
        name: Short name, for people.
        target: The changed attribute, as ``module:attribute``; the attribute may be a dotted path.
        purpose: Correctness or speed.
        gives: Its effect, in half a sentence.
        without: The effect of a missing target, in half a sentence.
        takes: Names that the target's parameters must begin with, for each known form; empty if any will do.
        since: Oldest version of torch that needs it.
        before: First version that needs it no more; `None` if all later ones do.
        optional: Whether builds of torch without CUDA lack the target; then it is made, and removed afterwards.
    """

    name: str
    target: str
    purpose: Purpose
    gives: str
    without: str
    takes: tuple[tuple[str, ...], ...] = ()
    since: tuple[int, int] = (0, 0)
    before: tuple[int, int] | None = None
    optional: bool = False

    @property
    def needed(self) -> bool:
        """Whether the installed torch needs it."""
        version = torch_version()
        return self.since <= version and (self.before is None or version < self.before)

    def place(self) -> Place:
        """The place of the target.

        Raises:
            LookupError: It is not there, or takes other arguments than those known here; the message says which.
        """
        module, _, path = self.target.partition(":")
        *owners, attribute = path.split(".")
        try:
            owner: Any = importlib.import_module(module)
            for name in owners:
                owner = getattr(owner, name)
            value = getattr(owner, attribute, None) if self.optional else _attribute(owner, attribute)
        except (ImportError, AttributeError) as error:
            raise LookupError(f"{module}.{path} is missing") from error
        if self.takes:
            self._check_parameters(f"{module}.{path}", value)
        return Place(owner, attribute, value)

    def _check_parameters(self, target: str, value: Any) -> None:
        try:
            parameters = inspect.signature(value).parameters.values()
        except (TypeError, ValueError) as error:
            raise LookupError(f"{target} is no function whose parameters can be read") from error
        if any(p.kind is p.VAR_POSITIONAL for p in parameters):
            return  # another library has wrapped it, and passes its arguments on
        names = tuple(p.name for p in parameters)
        # Replacements pass further parameters on as they come.
        if not any(names[: len(known)] == known for known in self.takes):
            allowed = " or ".join(f"({', '.join(known)})" for known in self.takes)
            raise LookupError(f"{target} takes ({', '.join(names)}) rather than {allowed}")

    def usable(self) -> Place | None:
        """The place of the target; `None` if a speed row stays off, or this torch does not need the row.

        Raises:
            UnsupportedTorch: The target of a correctness row cannot be changed.
        """
        # Not even looked up: versions that do not need the row may not have the target.
        if not self.needed:
            return None
        try:
            return self.place()
        except LookupError as error:
            if self.purpose is Purpose.CORRECTNESS:
                raise self.unsupported(str(error)) from error
            _say_once(self, str(error))
            return None

    def unsupported(self, problem: str) -> UnsupportedTorch:
        """The error that says why this torch cannot be worked with."""
        import torch

        return UnsupportedTorch(torch.__version__, problem, self.without)


def torch_version() -> tuple[int, int]:
    """Major and minor number of the installed torch."""
    import torch

    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def untested() -> str:
    """Why the installed torch may not work; empty for a version that was tested."""
    import torch

    oldest, newest = TESTED_TORCH
    if oldest <= torch_version() <= newest:
        return ""
    return f"got torch {torch.__version__}, tested are {shown(oldest)} to {shown(newest)}"


def shown(version: tuple[int, int]) -> str:
    """A version as people write it."""
    return ".".join(map(str, version))


def _attribute(owner: Any, name: str) -> Any:
    """An attribute; `None` for a field of a data class without a default."""
    # Such a field exists on instances only, so the class must be asked for its fields.
    if name in getattr(owner, "__dataclass_fields__", ()) and not hasattr(owner, name):
        return None
    return getattr(owner, name)


@cache
def _say_once(patch: Patch, problem: str) -> None:
    logger.info("%s is off: %s; %s", patch.name, problem, patch.without)
