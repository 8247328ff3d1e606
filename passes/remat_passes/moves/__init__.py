"""Changes that make a plan cheaper or smaller: evictions, trims, climbs, and whole regions solved again."""
