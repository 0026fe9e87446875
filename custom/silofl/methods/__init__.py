"""The parts: what an algorithm sends, one file each with its server half and its site half."""
