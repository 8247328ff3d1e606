"""The code that the inner compiler emitted, run on fake tensors: its exact peak, before the first step."""
