"""From a plan to the forward and backward graph modules that execute it."""
