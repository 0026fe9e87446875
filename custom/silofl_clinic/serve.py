"""Answer each new series with a trained model, and send segmentation and report to the archive.

The folder of an answer is its entry in the journal: it appears once all in it is written, and gets ``sent.json`` once
the archive has it. What a crash interrupts has no folder yet, and is answered after the next start; what was answered
is not answered again, for its folder is named by series, model, version and options. While the model is withdrawn, no
series is answered; they are once the list lets it answer, or by another model.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

from silofl.base.errors import ConfigError, ExitCode, SiloFLError, one_line
from silofl.base.files import fill_folder, make_folder, read_json, write_json
from silofl.base.settings import load_settings
from silofl.inference.names import RECORD
from silofl.reading.header import dicom_headers
from silofl_clinic.archive import send_files
from silofl_clinic.exams import EXAMS, Inbox, is_settled
from silofl_clinic.receive import put_away_until_ended
from silofl_clinic.receiver import Receiver
from silofl_clinic.report import write_report
from silofl_clinic.series_rules import is_wanted
from silofl_clinic.settings import Clinic
from silofl_hospital.inference.command import Input, Options, Runner
from silofl_hospital.inference.dicom_seg import derive_uid
from silofl_hospital.inference.withdrawn import UNCHECKED, check_not_withdrawn

ANSWERS, SENT, REPORT = "answers", "sent.json", "report.dcm"
# Seconds until an exam is tried again at which the machine failed, as by a full disk or a lack of memory.
PAUSES = (60, 600)
# A series ends in one of these states.
UNWANTED = "not for this model"
FAILED, FORBIDDEN, WAITING, KEPT, DELIVERED = "failed", "do not use", "not sent yet", "kept here", "sent"


class _MachineError(Exception):
    """The machine failed at an exam, which says nothing of it."""


class Service:
    """One model, of a super model's folder, that answers the series of a clinic.

    Raises:
        ConfigError: The model is none that segments, or withdrawn, or the settings do not fit.
    """

    def __init__(self, model: Path, clinic: Clinic) -> None:
        if clinic.has_pseudonyms:
            raise ConfigError(
                "the answers of serve go back, and has_pseudonyms of clinic.yaml would rename their patients; remove it"
            )
        self._clinic = clinic
        self._answers = clinic.root / ANSWERS
        self._watched = Path(clinic.watched).expanduser() if clinic.watched else clinic.root / EXAMS
        for folder in (self._answers, self._watched):
            make_folder(folder)
        options = Options(has_dicom_seg=True, threshold=clinic.threshold, device=clinic.device)
        self.runner = Runner(model, self._answers, options)
        # Exams of its own receiver are complete when they are put there.
        self._wait = 0 if clinic.callers and not clinic.watched else clinic.wait_seconds
        # This was last said of an archive that is away, or of a model that is withdrawn.
        self._said = ""
        # Each folder of a series has the time of its last change, once it needs nothing more.
        self._done: dict[Path, int] = {}
        # Folders of series that the model is not for.
        self._unwanted: set[Path] = set()
        # Each folder of a series at which the machine failed has its tries, and when the next one is.
        self._later: dict[Path, tuple[int, float]] = {}
        # Each folder of an answer that the archive has not taken has its model.
        self._waiting: dict[Path, str] = {}
        for target in self._list_answers():
            if find_state(target) == WAITING:
                self._waiting[target] = read_json(target / RECORD, list)[0]["super_model"]

    def answer_all(self) -> Iterator[str]:
        """Answer each series that is complete and was not, and send what was not sent; yields a line for each."""
        has_archive = yield from self._send_all()
        # Those that wait for another try come after all others.
        for folder in sorted(list_series(self._watched), key=self._later.__contains__):
            changed = folder.stat().st_mtime_ns
            is_due = self._later.get(folder, (0, 0.0))[1] <= time.monotonic()
            if is_due and self._done.get(folder) != changed and is_settled(folder, self._wait):
                # Before each: the list may come in between.
                if reason := self._find_withdrawal(self.runner.fingerprint):
                    yield from self._say(reason)
                    return
                try:
                    yield from self._answer(folder)
                except (OSError, MemoryError, _MachineError) as error:
                    tries = self._later.get(folder, (0, 0.0))[0] + 1
                    if tries <= len(PAUSES):
                        self._later[folder] = tries, time.monotonic() + PAUSES[tries - 1]
                        continue
                    # No record can be written: it is named here, and tried again once it is sent again.
                    yield f"{folder.name} has no answer after {tries} tries ({error}); send it again"
                self._later.pop(folder, None)
                self._done[folder] = changed
                # Each is sent at once; but a whole list need not wait for an archive that is away.
                has_archive = has_archive and (yield from self._send_all())

    def _answer(self, folder: Path) -> Iterator[str]:
        try:
            headers = [*dicom_headers(folder)]
        except Exception as error:  # pydicom raises whatever its parsers raise; the other series go on
            if isinstance(error, OSError | MemoryError) or getattr(error, "may_pass", False):
                raise _MachineError(one_line(error)) from None
            yield f"{folder.name} holds other files than DICOM ({one_line(error)}); take them away"
            return
        # Answers, that the archive may send on, are images too.
        wanted = self._clinic.modalities or {header.get("Modality") for header in headers} - {"SEG"}
        if not headers or headers[0].get("Modality") not in wanted:
            return
        if not is_wanted(headers, self._clinic.series):
            self._unwanted.add(folder)
            return
        self._unwanted.discard(folder)
        runner = self.runner
        target = self._answers / derive_uid(ANSWERS, headers, runner.fingerprint, runner.described)
        if target.exists():
            is_newer = folder.stat().st_mtime > target.stat().st_mtime
            if find_state(target) != FAILED or not is_newer:
                return
            # It was sent again after it had failed.
            shutil.rmtree(target)
        with fill_folder(target) as runner.out:
            name = str(headers[0].get("SeriesInstanceUID", folder.name))
            record, line = runner.predict(Input(folder, name, headers))
            if runner.may_pass and self._later.get(folder, (0, 0.0))[0] < len(PAUSES):
                raise _MachineError(line)
            if "dicom_seg" in record:
                segmentation = runner.out / record["dicom_seg"]
                study = runner.model.contents.study
                try:
                    write_report(runner.out / REPORT, headers, segmentation, record, study, runner.described)
                except (AttributeError, KeyError, ValueError, TypeError) as error:  # an odd element of the header
                    record["warnings"].append(f"no report: {one_line(error)}; its segmentation is whole")
            write_json(runner.out / RECORD, [record])
        if find_state(target) == WAITING:
            self._waiting[target] = record["super_model"]
        yield line

    def _send_all(self) -> Generator[str, None, bool]:
        """Send what was not sent, and of no withdrawn model; returns whether the archive took it."""
        if not self._clinic.archive:
            return True
        for target, model in [*self._waiting.items()]:
            if self._find_withdrawal(model):
                continue
            try:
                send_files(self._clinic, sorted(target.glob("*.dcm")))
            except SiloFLError as error:
                yield from self._say(f"{len(self._waiting)} not sent yet: {error}")
                return False
            now = datetime.now(UTC).isoformat(timespec="seconds")
            write_json(target / SENT, {"time": now, "archive": self._clinic.archive.ae_title})
            del self._waiting[target]
            self._said = ""
        return True

    def _say(self, line: str) -> Iterator[str]:
        """Yield a line, but not at each look at the folder."""
        if line != self._said:
            self._said = line
            yield line

    def _find_withdrawal(self, fingerprint: str) -> str:
        """Return why a model must not answer: it is on the list, or the list is not to be trusted; "" if it may."""
        try:
            check_not_withdrawn(self.runner.folder, fingerprint)
        except ConfigError as error:
            return str(error)
        return ""

    def _list_answers(self) -> list[Path]:
        # The hidden ones are not finished.
        return sorted(self._answers.glob("[!.]*"))

    def counts(self) -> Counter[str]:
        """Return how many answers there are, by what became of them."""
        counts = Counter(map(find_state, self._list_answers()))
        if not self._clinic.archive:
            counts[KEPT] = counts.pop(WAITING, 0)
        counts[UNWANTED] = len(self._unwanted)
        return +counts


def find_state(target: Path) -> str:
    """Return what became of an answer, by its folder."""
    if (target / SENT).exists():
        return DELIVERED
    (record,) = read_json(target / RECORD, list)
    if "dicom_seg" in record:
        return WAITING
    return FORBIDDEN if record.get("do_not_use") else FAILED


def list_series(folder: Path) -> Iterator[Path]:
    """Yield each folder within a folder that holds files itself; hidden ones are passed over."""
    for path, names, files in os.walk(folder):
        # Changed in its place, since `os.walk` goes on with what is left.
        names[:] = sorted(name for name in names if not name.startswith("."))
        if any(not name.startswith(".") for name in files):
            yield Path(path)


def run(options: argparse.Namespace) -> int:
    """Answer series until the program is ended, and count what became of them."""
    clinic = load_settings(Clinic, options.config)
    service = Service(options.model, clinic)
    inbox = Inbox(clinic)
    if not service.runner.is_listed:
        print(UNCHECKED)
    # Without callers another program fills the watched folder.
    with Receiver(clinic, inbox).listen() if clinic.callers else nullcontext():
        print(f"{clinic.ae_title} answers; records lie in {clinic.root / ANSWERS}", flush=True)
        put_away_until_ended(inbox, service.answer_all)
    counts = [f"{count} {state}" for state, count in sorted(service.counts().items())]
    print(f"answers: {', '.join(counts) or 'none'}")
    return ExitCode.COMPLETE
