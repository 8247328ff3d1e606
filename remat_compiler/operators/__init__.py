"""One table of operators: the facts about each that its name alone tells, for whoever captures, counts or rewrites."""
