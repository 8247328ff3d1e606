"""Plans of earlier compilations: found by the problem that they solve, and verified before they are used."""
