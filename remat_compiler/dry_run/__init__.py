"""What the inner compiler emitted, run on fake tensors: its peak, exactly, before the first step."""
