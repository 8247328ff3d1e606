"""Memory off the device: where values that a plan moves are kept, and the operators that move them."""
