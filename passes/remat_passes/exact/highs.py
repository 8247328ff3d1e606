"""HiGHS that writes nothing: a user's standard output may be data, such as the JSON of `remat plan --json`."""

from __future__ import annotations

from functools import cache
from typing import Any


def quiet_highs(**options: object) -> Any:
    """A new solver of HiGHS with these options, which never writes to standard output.

    Raises:
        ImportError: The package ``highspy`` is not installed.
    """
    solver = _quiet_class()()
    for name, value in {"output_flag": False, **options}.items():
        solver.setOptionValue(name, value)
    return solver


@cache
def _quiet_class() -> Any:
    import highspy  # an extra of this project

    base: Any = highspy.Highs

    def enable_callbacks(self: Any) -> None:
        # From 1.16 on, the first callback of a process writes a banner, and the constructor sets callbacks.
        self.setOptionValue("output_flag", False)
        base.enableCallbacks(self)

    return type("QuietHighs", (base,), {"enableCallbacks": enable_callbacks})
