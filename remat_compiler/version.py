"""Version of the project, and the versions of torch that it was tested with."""

from __future__ import annotations

from importlib import metadata

__version__ = "0.2.0"

TESTED_TORCH = ((2, 11), (2, 15))
"""The oldest and the newest.  Others are warned of, and refused only if they lack something that this project needs."""


def installed_version(package: str) -> str | None:
    """Version of an installed package; `None` if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
