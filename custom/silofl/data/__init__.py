"""From disk to batches: read and check dataset.json and images, prepare and cache them, and yield batches."""
