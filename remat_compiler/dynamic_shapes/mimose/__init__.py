"""Mimose's collector: layers measured beside the first steps, and curves through what they took."""
