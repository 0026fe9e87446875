"""How NVFlare sends over a thin line, as a kit's ``local/comm_config.json`` says it, where no job reaches.

By default up to 64 MiB are on their way at a time, and what has not come after 5 s is sent once more: on a thin line
that is all of it, again and again, until NVFlare gives up after 60 s: "seq 0 retry failed".
"""

import math
import re
from typing import Any

from silofl.base.errors import ConfigError, quote_value
from silofl.flare.nvflare_patches import set_answer_times

COMM_CONFIG = "comm_config.json"
WINDOW, WAIT, GIVE_UP = "streaming_window_size", "streaming_retry_wait", "streaming_retry_timeout"
MIB = 1 << 20
# NVFlare's own.
DEFAULTS = {WINDOW: 64 * MIB, WAIT: 5, GIVE_UP: 60}
# On its way at a time, of which each MiB is acknowledged; and so often it is sent again at the most.
THIN_WINDOW = 4 * MIB
TRIES = 6
UNITS = {"kbit": 1e3, "Mbit": 1e6, "Gbit": 1e9}


def parse_bandwidth(text: str, where: str = "--bandwidth") -> float:
    """Return the bits a second of a text as ``50Mbit``.

    Raises:
        ConfigError: It is no number above 0 with a unit.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(kbit|Mbit|Gbit)", text)
    if match is None or float(match[1]) == 0:
        units = ", ".join(UNITS)
        raise ConfigError(f"{where} must be a number above 0 and {units}, as 50Mbit, not {quote_value(text)}")
    return float(match[1]) * UNITS[match[2]]


def make_settings(bits: float, sites: int) -> dict[str, int]:
    """Return what ``comm_config.json`` says for the server's line, which so many sites share.

    Args:
        bits: A second.
    """
    # Twice what is on its way to all sites: the line has further buffers, and other messages.
    wait = max(DEFAULTS[WAIT], math.ceil(2 * 8 * THIN_WINDOW * sites / bits))
    timeout = max(DEFAULTS[GIVE_UP], TRIES * wait)
    sizes = {WINDOW: THIN_WINDOW, "streaming_ack_interval": MIB}
    return sizes | {WAIT: wait, GIVE_UP: timeout, "streaming_ack_progress_timeout": timeout}


def wait_for_line(runner: Any, timeout_s: float) -> None:  # noqa: ANN401 - NVFlare's ClientRunner
    """Have a site send its answer anew after this time, not 300 s, and ask anew whether it may as the line allows."""
    from nvflare.fuel.f3.comm_config import CommConfigurator

    set_answer_times(runner, timeout_s, CommConfigurator().get_streaming_retry_wait(DEFAULTS[WAIT]))
