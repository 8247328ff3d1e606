"""Exact planning: mixed-integer programs and the solvers behind them; no torch."""
