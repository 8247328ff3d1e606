"""The one judge of plans: memory timeline and time, and an independent verifier.  No torch."""
