"""Readers of public data sets, one file each, which plan everything that an import will write."""
