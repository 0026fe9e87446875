"""Readers of the layouts in which researchers keep images."""
