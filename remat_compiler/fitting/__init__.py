"""Does it fit?  Training steps on GPUs that are not there, planned and measured before anything runs."""
