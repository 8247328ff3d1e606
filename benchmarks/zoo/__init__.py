"""Training steps to measure on: models with example inputs, built by name from a fixed seed."""

from zoo.registry import ZooModel, build, names

__all__ = ["ZooModel", "build", "names"]
