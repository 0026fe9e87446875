"""Paths in NVFlare's commands, which it joins to one text and splits again as a shell does, without quoting any."""

import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from silofl.base.errors import ConfigError

# What ends a word, quotes one or begins a comment.
CUT = re.compile(r"""[ \t\r\n'"\\#]""")


def find_cut(path: str | Path) -> str | None:
    """Return the first character at which NVFlare cuts a path in two or takes some of it away; None for a whole one."""
    match = CUT.search(str(path))
    return match and match[0]


def check_whole(what: str, path: str | Path) -> None:
    """Refuse a path that NVFlare's commands do not keep whole.

    Args:
        what: Words for the path, as ``the workspace``.
        path: The path, as NVFlare gets it.

    Raises:
        ConfigError: It has a blank, a quote, a backslash or a hash.
    """
    if cut := find_cut(path):
        raise ConfigError(
            f"the path of {what} must have no {cut!r}, at which NVFlare's commands break, not {str(path)!r}; move it "
            "to a folder without blanks, quotes, backslashes and hashes, or name another"
        )


def check_start(folder: Path) -> None:
    """Refuse to have NVFlare start a kit, or the jobs in it, where its commands break.

    Args:
        folder: The kit's folder, or that of several.

    Raises:
        ConfigError: The path of the folder or of this Python has a blank, a quote, a backslash or a hash.
    """
    check_whole("the kit", folder.resolve())
    check_whole("Python", sys.executable)


@contextmanager
def whole_path(folder: Path) -> Iterator[Path]:
    """Yield a path to a folder that NVFlare's commands keep whole: its own one, or else one through a link.

    Raises:
        ConfigError: The folder for temporary files has no such path either.
    """
    if find_cut(folder) is None:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="silofl-") as temporary:
        check_whole("the folder for temporary files, TMPDIR,", temporary)
        link = Path(temporary, "link")
        link.symlink_to(folder)
        yield link
