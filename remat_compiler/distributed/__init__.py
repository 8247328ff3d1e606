"""Values on which the ranks of a distributed job must agree."""
