"""Planners: each a file, all behind `remat_passes.planning.interface.Planner`.  No torch."""
