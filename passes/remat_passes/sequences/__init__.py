"""Plans as sequences of operators: their memory and time, in compiled loops."""
