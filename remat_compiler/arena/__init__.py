"""Values of emitted graphs at planned offsets of a few tensors."""
