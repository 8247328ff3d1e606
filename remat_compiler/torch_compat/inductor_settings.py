"""Settings and modes of Inductor that a user gives to one compilation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, get_origin

from torch._inductor import config, list_mode_options

from remat_compiler.errors import OptionError, suggestion
from remat_compiler.log import logger_of
from remat_compiler.torch_compat.patching import inductor_settings_of_user

logger = logger_of(__name__)

_DECIDED: Mapping[str, str] = {
    **dict.fromkeys(("allow_buffer_reuse", "reorder_for_peak_memory"), "remat decides it, so that plans hold"),
    "custom_partitioner_fn": "remat is the partitioner",
    "cpp_wrapper": "the emitted step is checked in Python, and could not be otherwise",
    "triton.cudagraphs": "CUDA graphs hold memory in pools of their own, which no budget counts",
}
"""Settings under which remat cannot keep a budget, and why."""
_SWITCHES = ("cpp_wrapper", "triton.cudagraphs")
"""Those that users make for all compilations."""
_TIMED_PADDING, _FORCED_PADDING = "shape_padding", "force_shape_pad"
"""Whether Inductor pads products of odd sizes if they were faster so as it timed them, and whether it pads them all."""
_PLAIN = (type(None), bool, int, float, str)


def is_inductor_setting(name: str, value: object) -> bool:
    """Whether Inductor has a setting `name`; OptionError if it may not have that value here."""
    # `torch.compile` takes both spellings.
    own = name.replace("-", "_")
    if own not in config.get_config_copy():
        return False
    why = _DECIDED.get(own)
    # Of the switches, False is what remat sets, or torch's default.
    if why is not None and value is not False:
        raise OptionError(f"{name}={value!r}, a setting of Inductor, is not possible with remat: {why}; leave it out")
    # Only plain classes can be checked; a `list[str]` or a union is left to Inductor.
    expected = config.get_type(own)  # type: ignore[attr-defined]
    if get_origin(expected) is None and isinstance(expected, type) and not isinstance(value, expected):
        raise OptionError(f"{name}, a setting of Inductor, must be of type {expected.__name__}, got {value!r}")
    if not _is_plain(value):
        raise OptionError(
            f"{name}, a setting of Inductor, must be made of numbers and strings to be an option, since plans are kept "
            f"under it, got {value!r}; set it by torch._inductor.config"
        )
    return True


def _is_plain(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, (*value, *value.values())))
    return isinstance(value, _PLAIN)


def settings_of_mode(mode: object) -> dict[str, Any]:
    """Settings of Inductor in a mode of `torch.compile`; OptionError for an unknown mode, or one that remat refuses."""
    modes: dict[str, dict[str, Any]] = list_mode_options()
    if not isinstance(mode, str) or mode not in modes:
        raise OptionError(f"unknown mode {mode!r}{suggestion(str(mode), tuple(modes))}")
    for name in modes[mode]:
        if name in _DECIDED:
            possible = [other for other, settings in modes.items() if not settings.keys() & _DECIDED.keys()]
            raise OptionError(
                f"mode={mode!r} is not possible with remat: it sets {name!r} of Inductor, and {_DECIDED[name]} "
                f"(allowed: {', '.join(possible)})"
            )
    return dict(modes[mode])


def with_settings(settings: Sequence[tuple[str, Any]]) -> AbstractContextManager[Any]:
    """Within the block Inductor has these settings, and none of those that are refused as options.

    Those may have been made for all compilations, by `torch._inductor.config` or by an environment variable.

    Products are not padded by what a clock says, if these settings do not ask for it: timing them takes as much memory
    again while compiling, ranks, or a process and the next, would plan different graphs, and Inductor pads in loops of
    their own.  `capture.padding` pads by rules.
    """
    named = {name.replace("-", "_"): value for name, value in settings}
    before = config.get_config_copy()
    if not named.get(_FORCED_PADDING, before.get(_FORCED_PADDING)):
        named.setdefault(_TIMED_PADDING, False)
    made = [name for name in _SWITCHES if before.get(name)]
    for name in made:
        _tell_off(name)
    return inductor_settings_of_user({**named, **dict.fromkeys(made, False)})


@cache
def _tell_off(name: str) -> None:
    logger.warning(
        "%s, a setting of Inductor, is on for all compilations; graphs that remat compiles are without it: %s",
        name,
        _DECIDED[name],
    )
