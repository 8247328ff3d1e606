"""Mimose's collector: layers measured during the first steps, and curves fitted to their bytes."""
