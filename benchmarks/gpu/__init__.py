"""What holds on a GPU: questions that `run` asks, each in a process of its own."""
