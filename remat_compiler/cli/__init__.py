"""The command `remat`."""
