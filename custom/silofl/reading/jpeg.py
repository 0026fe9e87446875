"""Check that a JPEG holds the pixels that its header states: libjpeg fills in what is missing, and warns nobody.

Source: ITU-T T.81, annex B. Whether a scan ends early is seen by its decoder alone. So the picture is decoded twice,
once with other bytes behind each scan: a whole one does not change.
"""

import io
import re
from itertools import product

from PIL import Image

END_OF_IMAGE, START_OF_SCAN = 0xD9, 0xDA
# Of baseline, extended and progressive JPEG, by Huffman's and by arithmetic codes.
START_OF_FRAME = (0xC0, 0xC1, 0xC2, 0xC9, 0xCA)
MARKER = re.compile(rb"\xff+(.?)", re.DOTALL)
# In a scan 0xFF comes before a zero or a restart marker alone.
SCAN_END = re.compile(rb"\xff+[^\x00\xff\xd0-\xd7]")
RESTART = re.compile(rb"\xff([\xd0-\xd7])")
# Without 0xFF; where bits are missing libjpeg takes zeros, from which the first bit differs.
MORE = bytes(range(0xFE, 0, -1)) * 4
COEFFICIENTS = 64


def check_scans(content: bytes, picture: Image.Image | None = None) -> tuple[int, int]:
    """Refuse a JPEG of which pixels are missing.

    Args:
        picture: The file opened by Pillow, which keeps what it decodes; opened here when not given.

    Returns:
        Its columns and rows.

    Raises:
        ValueError: A scan ends early, or scans are missing.
        Exception: Whatever Pillow raises on broken bytes.
    """
    lengthened = _lengthen_scans(content)
    with Image.open(io.BytesIO(lengthened), formats=["JPEG"]) as longer:
        original = picture or Image.open(io.BytesIO(content), formats=["JPEG"])
        if (original.size, original.mode, original.tobytes()) != (longer.size, longer.mode, longer.tobytes()):
            raise ValueError("its pixels end before its last row")
        return longer.size


def _lengthen_scans(content: bytes) -> bytes:
    """Return a JPEG with more bytes behind each scan."""
    position = 2
    parts = [content[:position]]
    # A progressive JPEG sends each component's coefficients in several scans, down to the last bit.
    missing: set[tuple[int, int]] = set()
    while (marker := MARKER.search(content, position)) and (code := ord(marker[1] or b"\0")) != END_OF_IMAGE:
        start = marker.end()
        end = start + int.from_bytes(content[start : start + 2], "big")
        segment = content[start + 2 : end]
        parts.append(content[position:end])
        if code in START_OF_FRAME:
            missing.update(product(segment[6::3], range(COEFFICIENTS)))
        if code == START_OF_SCAN:
            lowest, highest, bits = segment[-3:]
            if bits % 16 == 0:  # the bits that are left for later scans
                missing.difference_update(product(segment[1:-3:2], range(lowest, highest + 1)))
            following = SCAN_END.search(content, end)
            scan_end = following.start() if following else len(content)
            scan = content[end:scan_end]
            parts += [scan, _continue_scan(scan)]
            end = scan_end
        position = end
    if missing:
        raise ValueError("scans are missing")
    return b"".join([*parts, content[position:]])


def _continue_scan(scan: bytes) -> bytes:
    """Return bytes that a decoder reads behind a scan, and those behind the restart marker that it would wait for."""
    restarts = RESTART.findall(scan)
    number = (restarts[-1][0] + 1) % 8 if restarts else 0
    return MORE + bytes([0xFF, 0xD0 + number]) + MORE
