"""The text of settings and records, read in bounded time and memory, whatever lies at the path."""

import errno
import json
import os
import re
import stat
from collections import Counter
from pathlib import Path

from silofl.base.errors import ConfigError, one_line, quote_value

KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
# The ledger of a hundred sites and a thousand rounds has as many bytes.
LARGEST_JSON = 1 << 28
ESCAPED_HALF = re.compile(r"\\u[dD][89a-fA-F]")
# JSON's null is a value too.
ABSENT = object()


class TwinError(ValueError):
    """A key that stands twice in one place of a JSON document."""


class SpecialFileError(OSError):
    """A pipe, a socket or a device, of which reading may never end."""


def check_kind(path: Path) -> int:
    """Refuse what is neither a file nor a folder before it is opened: opening a pipe waits for its writer.

    Returns:
        Its mode.

    Raises:
        SpecialFileError: It is a pipe, a socket or a device.
        OSError: It cannot be looked at.
    """
    mode = os.stat(path).st_mode
    if stat.S_IFMT(mode) in KINDS:
        raise SpecialFileError(errno.EINVAL, KINDS[stat.S_IFMT(mode)])
    return mode


def read_document(path: Path, kind: str, most: int) -> str | None:
    """Return the text of a file; None where there is none.

    Args:
        kind: Its format, for errors.
        most: The bytes that it may have.

    Raises:
        ConfigError: It is no file, too large, cannot be read, or is not text in UTF-8.
    """
    try:
        check_kind(path)
        # The size is measured by reading: a file may grow, and those of the kernel say 0.
        with path.open("rb") as stream:
            content = stream.read(most + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"{path} is {_describe_obstacle(error)}; a {kind} file is needed there") from None
    if len(content) > most:
        raise ConfigError(f"{path} is larger than {most} bytes, the most that a {kind} file may have; shorten it")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not in UTF-8; save the {kind} file in this encoding") from None


def read_json_document(path: Path) -> object:
    """Return the value in a JSON file; `ABSENT` where there is none.

    Raises:
        ConfigError: As `read_document`; or it is no JSON, which knows no NaN and no infinity, or repeats a key.
    """
    text = read_document(path, "JSON", LARGEST_JSON)
    if text is None:
        return ABSENT
    try:
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=build_table)
        # Half a character pair can be written as an escape, and in no page, terminal or file name afterwards.
        if ESCAPED_HALF.search(text):
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is broken JSON ({one_line(error)}); correct it, or restore a copy") from None


def build_table(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return the keys and values of one place of a JSON document, as the ``object_pairs_hook`` of `json.loads`.

    Raises:
        TwinError: A key stands twice: programs take one value or the other.
    """
    table = dict(pairs)
    if len(table) < len(pairs):
        twin, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise TwinError(f"the key {quote_value(twin)} stands twice")
    return table


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _describe_obstacle(error: OSError) -> str:
    if isinstance(error, SpecialFileError):
        return str(error.strerror)
    if isinstance(error, IsADirectoryError):
        return "a folder"
    return f"unreadable ({os.strerror(error.errno) if error.errno else type(error).__name__})"
