"""Version of the project, and the versions of torch that it was tested with."""

__version__ = "0.1.0"

TESTED_TORCH = ((2, 11), (2, 15))
"""The oldest and the newest.  Others are warned of, and refused only if they lack something that this project needs."""
