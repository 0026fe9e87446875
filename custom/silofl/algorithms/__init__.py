"""The algorithms as mathematics on NumPy arrays and torch modules, one file an algorithm."""
