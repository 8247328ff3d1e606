"""A training step that runs several graphs: what happens in it, when it is over, and its peak.  No torch."""
