"""Where each storage of a step stands in one arena: the layout planners, one a file, and what they share."""
