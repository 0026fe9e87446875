"""Write the README's picture: the first figure on the demonstration's page.

python bench/demo_picture.py demo/report.html docs/figures/demo.png
"""

import base64
import re
import sys
from pathlib import Path


def find_first_picture(page: str) -> bytes:
    """Return the bytes of the first PNG that a page holds.

    Raises:
        ValueError: It holds none.
    """
    found = re.search(r'<img src="data:image/png;base64,([^"]+)"', page)
    if found is None:
        raise ValueError("the page must hold a picture, not none; name the demonstration's report.html")
    return base64.b64decode(found[1])


if __name__ == "__main__":
    Path(sys.argv[2]).write_bytes(find_first_picture(Path(sys.argv[1]).read_text(encoding="utf-8")))
