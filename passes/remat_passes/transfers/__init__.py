"""Which values of a plan are moved off the device, when they leave, and when they come back."""
