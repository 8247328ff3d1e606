"""Planners, one a file, each with the interface `remat_compiler.ir.planner.Planner`."""
