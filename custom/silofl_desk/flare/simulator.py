"""NVFlare's simulator as a separate process that ends, with all its children, when its parent process is gone."""

import atexit
import gc
import json
import os
import sys

from silofl.parent import end_with_parent
from silofl_desk.flare.site_process import LOG, start_importing, write_output_to


def main() -> int:
    """Import what NVFlare and sites need, then run the job that the input names; nothing without one.

    The input is one JSON object: ``job_folder``, ``workspace``, ``clients`` (names with commas), ``threads`` and
    ``log``, the file that gets all output.
    """
    # Of all that NVFlare writes, TensorBoard's events among it.
    os.umask(0o077)
    end_with_parent()
    start_importing()
    # Imported after the watch has started: NVFlare takes seconds to import, in which the parent may already end.
    from silofl.training.device import count_cores
    from silofl_desk.flare.workers import WatchfulRunner

    given = sys.stdin.read()
    if not given:
        return 0
    arguments = json.loads(given)
    os.environ[LOG] = arguments.pop("log")
    write_output_to(os.environ[LOG])
    # Sites that train at the same time share the cores.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, count_cores() // arguments["threads"])))
    # Python looks through all objects as it ends, which takes a second after an import of torch.
    atexit.register(gc.freeze)
    return WatchfulRunner(**arguments, log_config="concise").run()


if __name__ == "__main__":
    sys.exit(main())
