"""What each operator costs: time by roofline or by measurement, and the workspace that it allocates."""
