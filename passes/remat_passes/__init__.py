"""The passes of the remat compiler: planners, and rewriting passes, found through `remat_passes.registry`."""
