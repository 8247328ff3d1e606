"""Exact planning: mixed-integer programs and their solvers; no torch."""

from remat_passes.apart import import_in_thread

import_in_thread("pulp")
