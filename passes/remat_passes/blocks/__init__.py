"""Graphs of repeated blocks: equal ones found, each solved once, and put together."""
