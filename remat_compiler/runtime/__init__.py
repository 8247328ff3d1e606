"""What runs beside and after compilation: prediction, checks, dispatch, caches."""
