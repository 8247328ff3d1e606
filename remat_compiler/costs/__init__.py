"""The cost of each operator: time by roofline or by measurement, and the workspace that it allocates."""
