"""The public data sets of the papers' experiments, for researchers; hospitals do not install this package."""
