"""Lower bounds of the added time, which no plan can beat."""

from remat_passes.apart import import_in_thread

import_in_thread("pulp")
