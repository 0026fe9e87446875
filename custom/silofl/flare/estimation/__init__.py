"""What a run will need: bytes on the lines, room on disks and in memory, time."""
