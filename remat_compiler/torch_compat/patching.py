"""Changes torch by a row of the table of patches, and changes it back."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FunctionType
from typing import Any

from torch._inductor import config as inductor_config

from remat_compiler.torch_compat.patch import Patch

_ABSENT = object()


def replace(patch: Patch, made: Callable[[Any], Any]) -> Callable[[], None]:
    """Replace the target by what `made` makes of it; if a speed row stays off, nothing happens.

    Args:
        patch: A row of the table.
        made: Takes the present value of the target, gives the new one.

    Returns:
        A function that puts back the former value.

    Raises:
        UnsupportedTorch: The target of a correctness row cannot be changed.
    """
    place = patch.usable()
    if place is None:
        return lambda: None
    owner, attribute = place.owner, place.attribute
    # From the owner's own dictionary: `getattr` would unwrap a static method, and find what a class inherits.
    before = vars(owner).get(attribute, _ABSENT)
    new = made(place.value)
    # With the original's signature, which `Patch.place` checks again if the target is replaced twice.
    if isinstance(new, FunctionType) and callable(place.value):
        functools.update_wrapper(new, place.value, updated=())
    # A class method was read as bound to its class, so what is made of it takes no class either.
    is_static = isinstance(before, (staticmethod, classmethod))
    setattr(owner, attribute, staticmethod(new) if is_static else new)

    def undo() -> None:
        # It was inherited, and is again.
        if before is _ABSENT:
            delattr(owner, attribute)
        else:
            setattr(owner, attribute, before)

    return undo


@contextmanager
def replaced(patch: Patch, made: Callable[[Any], Any]) -> Iterator[None]:
    """`replace` for the time of the block."""
    undo = replace(patch, made)
    try:
        yield
    finally:
        undo()


@contextmanager
def replaced_in(patch: Patch, instance: Any, made: Callable[[Any], Any]) -> Iterator[None]:
    """`replaced` for the field of one instance of the class that the target names."""
    undo = replace_in(patch, instance, made)
    try:
        yield
    finally:
        undo()


def replace_in(patch: Patch, instance: Any, made: Callable[[Any], Any]) -> Callable[[], None]:
    """`replace` for the field of one instance of the class that the target names."""
    place = patch.usable()
    if place is None:
        return lambda: None
    attribute, before = place.attribute, getattr(instance, place.attribute)
    setattr(instance, attribute, made(before))
    return lambda: setattr(instance, attribute, before)


def original(patch: Patch) -> Any:
    """The present value at the target of a correctness row.

    Raises:
        UnsupportedTorch: It is not there, or differs from the known form.
    """
    place = patch.usable()
    if place is None:
        raise patch.unsupported(f"{patch.target} is not looked for")
    return place.value


@contextmanager
def settings(values: Mapping[Patch, Any]) -> Iterator[None]:
    """Within the block, these settings of torch have these values; changes of them within the block are undone, too.

    Raises:
        UnsupportedTorch: torch has no such setting, and a result depends on it.
    """
    # By configuration: each has its own `patch`, which takes all of its settings at once.
    changed: dict[int, tuple[Any, dict[str, Any]]] = {}
    for patch, value in values.items():
        place = patch.usable()
        if place is not None:
            changed.setdefault(id(place.owner), (place.owner, {}))[1][place.attribute] = value
    with ExitStack() as stack:
        for config, some in changed.values():
            stack.enter_context(config.patch(some))
        yield


def change_setting(patch: Patch, value: Any) -> None:
    """Change a setting of torch within a block of `settings` that names it."""
    place = patch.usable()
    if place is not None:
        setattr(place.owner, place.attribute, value)


def named(values: Mapping[Patch, Any]) -> dict[str, Any]:
    """Settings by their names, for a function of torch that takes them by name."""
    places = [(patch.usable(), value) for patch, value in values.items()]
    return {place.attribute: value for place, value in places if place is not None}


def inductor_settings_of_user(values: Mapping[str, Any]) -> AbstractContextManager[Any]:
    """Within the block Inductor has the user's settings, given by name; they are no rows of the table."""
    patched: AbstractContextManager[Any] = inductor_config.patch(dict(values))
    return patched
