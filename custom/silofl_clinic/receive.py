"""Take exams that other systems send, until the program is ended."""

import argparse
import time

from silofl.base.errors import ExitCode
from silofl_clinic.exams import Inbox, describe_counts
from silofl_clinic.receiver import Receiver
from silofl_clinic.settings import load_clinic

SECONDS_BETWEEN = 1


def run(options: argparse.Namespace) -> int:
    """Receive exams; print a line for each that is complete."""
    clinic = load_clinic(options.config)
    inbox = Inbox(clinic)
    receiver = Receiver(clinic, inbox)
    with receiver.listen() as port:
        print(f"{clinic.ae_title} takes exams at {clinic.address}:{port} into {clinic.root}", flush=True)
        try:
            while True:
                for uid, cause in inbox.settle():
                    print(f"exam {uid}: {'put apart: ' + cause if cause else 'whole'}", flush=True)
                time.sleep(SECONDS_BETWEEN)
        except KeyboardInterrupt:
            refused = "".join(f"; {n} files of {who} refused: {why}" for (who, why), n in receiver.refusals.items())
            print(f"{describe_counts(inbox.counts())}{refused}", flush=True)
    return ExitCode.COMPLETE
