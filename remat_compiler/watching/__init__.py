"""What torch does while a step runs, as events of `step_model`: which calls were made, and what became of them."""
