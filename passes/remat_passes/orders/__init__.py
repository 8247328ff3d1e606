"""Orders of the operators: in which order the backward, or the forward, runs them."""
