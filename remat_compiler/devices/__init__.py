"""What is known of devices without having them: a table of GPUs by name."""
