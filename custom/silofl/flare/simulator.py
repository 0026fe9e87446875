"""NVFlare's simulator as a separate process that ends, with all its children, when its parent process is gone."""

import argparse
import os
import sys

from silofl.parent import end_with_parent


def main() -> int:
    """Run one job; arguments: job folder, workspace, site names, number of threads."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job")
    parser.add_argument("workspace")
    parser.add_argument("sites")
    parser.add_argument("threads", type=int)
    arguments = parser.parse_args()
    # Of all that NVFlare writes, TensorBoard's events among it.
    os.umask(0o077)
    end_with_parent()
    # Imported after the watch has started: NVFlare takes seconds to import, in which the parent may already end.
    from silofl.flare.workers import WatchfulRunner

    runner = WatchfulRunner(
        arguments.job, arguments.workspace, clients=arguments.sites, threads=arguments.threads, log_config="concise"
    )
    return runner.run()


if __name__ == "__main__":
    sys.exit(main())
