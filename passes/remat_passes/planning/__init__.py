"""Planners: each a file, all behind `remat_compiler.ir.planner.Planner`."""
