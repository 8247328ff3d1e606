"""The torch-free data of a training step: graph, costs, problem and plan.

Nothing in this package imports torch, so that planners can be tested on plain data in milliseconds.
"""
