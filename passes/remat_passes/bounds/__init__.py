"""Lower bounds of the added time: what no plan can beat."""

from remat_passes.apart import import_apart

import_apart("pulp")
