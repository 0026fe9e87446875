"""SiloFL: federated learning of medical-image models across hospitals, on NVFlare.

Public: `read_results`; `silofl.recipes`; the formulas of `silofl.core` and `silofl.algorithms`, as `core.mixing.mix`;
`silofl.inference.SuperModel`; the errors of `silofl.base.errors`; the classes that a job names in `silofl.flare`.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from silofl.federation.results import Results

__version__ = "0.4.0"


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
        raise ConfigError("NVFlare must have the run's result, which it has not; see run.get_status() and its messages")
    return find_results(Path(folder))
