"""Processes for steps on paper are forked, see `paper_forks`."""

from paper_forks import forked_processes, new_interpreter

__all__ = ["forked_processes", "new_interpreter"]
