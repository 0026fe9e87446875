"""Check that a JPEG holds the pixels that its header states: libjpeg fills in what is missing, and warns nobody.

Source: ITU-T T.81, annex B. Whether a scan ends early is seen by its decoder alone. So the picture is decoded twice,
once with other bytes behind each scan: a whole one does not change.
"""

import io
import re

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
    with Image.open(io.BytesIO(lengthened), formats=["JPEG"]) as other:
        first = picture or Image.open(io.BytesIO(content), formats=["JPEG"])
        if (first.size, first.mode, first.tobytes()) != (other.size, other.mode, other.tobytes()):
            raise ValueError("its pixels end before its last row")
        return other.size


def _lengthen_scans(content: bytes) -> bytes:
    """Return a JPEG with more bytes behind each scan."""
    parts, place, missing = [content[:2]], 2, set()
    while (marker := MARKER.search(content, place)) and (kind := ord(marker[1] or b"\0")) != END_OF_IMAGE:
        start = marker.end()
        end = start + int.from_bytes(content[start : start + 2], "big")
        segment = content[start + 2 : end]
        parts.append(content[place:end])
        if kind in START_OF_FRAME:
            missing |= {(identity, k) for identity in segment[6::3] for k in range(COEFFICIENTS)}
        if kind == START_OF_SCAN:
            first, last, bits = segment[-3:]
            if bits % 16 == 0:  # the bits that are left for later scans
                missing -= {(identity, k) for identity in segment[1:-3:2] for k in range(first, last + 1)}
            found = SCAN_END.search(content, end)
            scan = content[end : (end := found.start() if found else len(content))]
            parts += [scan, _continue_scan(scan)]
        place = end
    if missing:
        raise ValueError("scans are missing")
    return b"".join([*parts, content[place:]])


def _continue_scan(scan: bytes) -> bytes:
    """Return bytes that a decoder reads behind a scan, and those behind the restart marker that it would wait for."""
    restarts = RESTART.findall(scan)
    number = (restarts[-1][0] + 1) % 8 if restarts else 0
    return MORE + bytes([0xFF, 0xD0 + number]) + MORE
