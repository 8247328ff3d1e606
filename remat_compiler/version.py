"""Version of the project, and the versions of torch that it was tested with."""

__version__ = "0.1.0"

TESTED_TORCH = ((2, 11), (2, 15))
"""The oldest and the newest; what lies beyond is warned of, and refused only where something that it needs is gone."""
