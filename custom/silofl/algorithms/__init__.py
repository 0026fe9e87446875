"""The algorithms, one file each; those of the three papers that the project is made for are folders."""
