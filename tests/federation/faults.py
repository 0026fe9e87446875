"""Faults of files, as disks and people make them."""


def flip(path, place=0.5):
    """Change one byte."""
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 1
    path.write_bytes(content)


def truncate(path):
    """Lose the second half."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def delete(path):
    """Lose the file, if it is still there."""
    path.unlink(missing_ok=True)


DAMAGES = {"flipped": flip, "truncated": truncate, "deleted": delete}
