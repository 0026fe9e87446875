"""The algorithms as pure mathematics on NumPy arrays and torch modules, one file an algorithm."""
