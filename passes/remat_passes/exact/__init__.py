"""Exact planning: mixed-integer programs and the solvers behind them; no torch."""

from remat_passes.apart import import_apart

import_apart("pulp")
