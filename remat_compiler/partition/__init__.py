"""One joint graph: captured, planned, and split into the forward and the backward that execute the plan."""
