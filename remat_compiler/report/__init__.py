"""What a person is shown: the decisions, the summary, the picture of memory, the dump."""
