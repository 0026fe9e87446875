"""The mathematics that several algorithms share: NumPy, torch and settings only."""
