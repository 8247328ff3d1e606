"""Lower bounds of the added time: what no plan can beat."""
