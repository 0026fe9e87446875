"""Take exams that other systems send, until the program is ended."""

import argparse
import signal
import time
from collections.abc import Callable, Iterable

from silofl.base.errors import ExitCode
from silofl.base.settings import load_settings
from silofl_clinic.exams import Inbox, describe_counts
from silofl_clinic.receiver import Receiver
from silofl_clinic.settings import Clinic

SECONDS_BETWEEN = 1


def run(options: argparse.Namespace) -> int:
    """Receive exams, and count them at the end."""
    clinic = load_settings(Clinic, options.config)
    inbox = Inbox(clinic)
    receiver = Receiver(clinic, inbox)
    with receiver.listen() as port:
        print(f"{clinic.ae_title} takes exams at {clinic.address}:{port} into {clinic.root}", flush=True)
        put_away_until_ended(inbox)
    texts = [describe_counts(inbox.counts())]
    for (caller, reason), count in receiver.refusals.items():
        texts.append(f"{count} of {caller} refused: {reason}")
    print("; ".join(texts))
    return ExitCode.COMPLETE


def put_away_until_ended(inbox: Inbox, answer: Callable[[], Iterable[str]] = list) -> None:
    """Put away exams that are complete, and have them answered; prints a line for each.

    What ends it is Ctrl-C, or the signal by which a system ends its services.
    """
    # Services are ended by this signal, as programs in a terminal by Ctrl-C.
    earlier = signal.signal(signal.SIGTERM, signal.default_int_handler)
    said = ""
    try:
        while True:
            try:
                for uid, cause in inbox.settle():
                    state = f"put apart: {cause}" if cause else "whole"
                    print(f"exam {uid}: {state}", flush=True)
                for line in answer():
                    print(line, flush=True)
                said = ""
            except OSError as error:  # as of a full disk, which may have room again
                if str(error.strerror) != said:
                    said = str(error.strerror)
                    print(f"exams wait, as the system said {said!r}; make room, or allow more files", flush=True)
            time.sleep(SECONDS_BETWEEN)
    except KeyboardInterrupt:
        return
    finally:
        signal.signal(signal.SIGTERM, earlier)
