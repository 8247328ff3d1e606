"""Plans that give each value one action: keep it, move it off the device, or recompute it."""
