"""One table of operators: the facts about each that follow from its name, for capturing, counting and rewriting."""
