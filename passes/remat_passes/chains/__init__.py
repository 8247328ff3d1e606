"""Chains of layers, as the papers on checkpointing have them, and their dynamic programs."""
