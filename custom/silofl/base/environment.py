"""What a process of SiloFL's needs of its environment before it loads torch and MONAI."""

import getpass
import os


def prepare_environment() -> None:
    """Name the account and say how torch's threads wait, where the environment does not.

    Called as the command line is imported, and the package that NVFlare's processes begin with.
    """
    # MONAI and torch's compiler ask for the account's name when they are imported, and so does `Path.home` where HOME
    # is not set; a container that runs as a bare number has none.
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["LOGNAME"] = str(os.getuid())
    # Where other programs use the cores, threads that wait by computing take eight times as long as one alone.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
