"""Searches over whole sequences of operators, from which `auto` takes its plans."""
