"""Disk to batch: dataset.json and images read, checked, prepared once, cached, and dealt out as batches."""
