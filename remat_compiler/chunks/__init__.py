"""Regions of a joint graph computed in chunks: what one operator needs at once is no longer the floor of every plan."""
