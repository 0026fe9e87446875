"""Readers of the layouts in which hospitals keep their images, and what all readers share."""
