"""SiloFL: federated learning of medical-image models across hospitals, on NVFlare."""

import getpass
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from silofl.federation.results import Results

__version__ = "0.4.0"


def _name_account() -> None:
    """Give the account a name where the system knows none, as in a container that runs as a bare number.

    MONAI and torch's compiler ask for it when they are imported, and so does `Path.home` where HOME is not set. Here,
    since this file comes first in every command, and in the processes of server and sites that NVFlare starts.
    """
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["LOGNAME"] = str(os.getuid())


_name_account()
# Before torch is loaded: where other programs use the cores, threads that wait by computing take eight times as long as
# one alone.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def read_results(folder: str | Path | None) -> "Results":
    """Return the result of a run.

    Args:
        folder: The run's folder, or what ``get_result`` of NVFlare's runs and ``nvflare job download`` name.

    Raises:
        silofl.base.errors.ConfigError: There is none, or it is not what silofl wrote.
    """
    # They are imported only now, because pydantic and NumPy come with them.
    from silofl.base.errors import ConfigError
    from silofl.federation.results import find_results

    if folder is None:
        # What NVFlare returns of a run that goes on, or whose result it could not fetch.
        raise ConfigError("NVFlare has no result of the run; see run.get_status() and its messages")
    return find_results(Path(folder))
