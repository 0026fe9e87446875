"""The command that labels new images, and what it writes."""
