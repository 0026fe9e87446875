"""Several runs beside each other: methods, seeds, settings, pooled data, and the demonstration."""
