"""Planners that run the step as an eager framework would: memory, what is evicted from it, and the trace."""
