"""Callbacks that tell a trainer's own logger what was planned: a module for each package that has trainers.

Each module imports that package, so import the one that you train with.
"""
