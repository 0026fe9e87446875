"""A run's folder at the server: checkpoint, ledger, metrics, models and the result, each written atomically."""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from silofl.base.errors import ConfigError, DamagedError, StateError, quote_value
from silofl.base.files import (
    copy_file,
    hold_lock,
    load_state,
    make_folder,
    read_json,
    remove_unfinished,
    save_state,
    write_json,
    write_text,
)
from silofl.base.schema import dump_record, read_file
from silofl.core.mixing import Arrays
from silofl.data.counts import FILE as DATA
from silofl.data.counts import DataCounts
from silofl.federation.checkpoint import FORMAT, check_study, checkpoint, read_finished_rounds, restore_run
from silofl.federation.course import Tests
from silofl.federation.ledger import FILE, Round, metrics_csv, read_ledger
from silofl.federation.model_files import describe_models, save_models
from silofl.federation.outcome import finished_results, stopped_results
from silofl.federation.results import FILE as RESULT
from silofl.federation.results import Results, read_results
from silofl.federation.server import ServerRounds
from silofl.federation.unscored import unscored_results
from silofl.inference import directory
from silofl.parts.load import describe_kept, list_outbound_payloads
from silofl.parts.operating_points import find_own_operating_points, pool_operating_points
from silofl.parts.task import Exchange
from silofl.study import Study
from silofl.training.site_score import SiteScore, SuperScore

# The last checkpoint, the one before it, and the one that is being written.
CHECKPOINT, BEFORE, NEXT = "checkpoint.pt", "checkpoint.before.pt", "checkpoint.next.pt"
# The SHA-256 and the id of the run whose folder it is, by which another run's checkpoint is known.
RUN_ID = "run_id"
# Files that show that rounds have finished, should no checkpoint be there.
LEFT_BY_ROUNDS = (CHECKPOINT, BEFORE, FILE, "metrics.csv")
# The task that the sites work on, and its round; not JSON, because it is no result.
PHASE = "phase"
# Who submitted the run's first job; in no simulation.
LEAD = "lead.json"
# A run's results, without its checkpoint; the files of parts are JSON too.
RESULTS = ("*.json", "metrics.csv", "model", directory.FOLDER)
# Those of the rounds that have finished.
RECORDS = (FILE, "metrics.csv")

logger = logging.getLogger(__name__)


class RunFolder:
    """The folder ``RUN/`` of one run.

    Args:
        path: The folder; made when missing.
        study: The study that runs in it.
    """

    def __init__(self, path: Path, study: Study) -> None:
        self.path = path
        self.study = study
        self._pretrained: Arrays | None = None
        # The finished rounds of the checkpoint there; None where no whole one is.
        self._saved: int | None = None
        # The finished rounds in the words of ledger.json.
        self._records: list[str] = []
        make_folder(path)

    def locked(self) -> AbstractContextManager[None]:
        """Hold the folder for this process; the errors of `silofl.base.files.hold_lock`."""
        return hold_lock(self.path / "lock")

    def claim(self, lead: str | None) -> None:
        """Record whose run this is; the errors of `check_lead`."""
        check_lead(self.path, lead)
        if lead is not None:
            write_json(self.path / LEAD, {"lead": lead})

    def name_run(self, run: str) -> str:
        """Return the id of the run that the folder is of: what it was begun with, or else the given one from now on."""
        if not self.is_begun:
            write_text(self.path / RUN_ID, f"{_digest_id(run)} {run}")
        return self._belongs_to["run"]

    @property
    def is_begun(self) -> bool:
        """Whether the folder is of a run, of which no round need have finished."""
        return bool(self._belongs_to)

    def load(self, pretrained: Arrays | None = None) -> ServerRounds | None:
        """Return the run as its last checkpoint left it, or None where no round has finished.

        Where the last checkpoint is damaged or missing, the one before it is taken, and the ledger says so.

        Raises:
            StateError: No checkpoint is whole, another version wrote it, or the study has changed since.
            ConfigError: The study names sites that have left, and no round has finished.
        """
        remove_unfinished(self.path)
        self._pretrained = pretrained
        self._finish_save()
        state, damage = self._read_checkpoint()
        if state is None and not any((self.path / name).exists() for name in LEFT_BY_ROUNDS):
            if self.study.federation.sites_left:
                left = quote_value([*self.study.federation.sites_left])
                raise ConfigError(
                    f"federation.sites_left must be empty where a run begins, not {left}; a site can leave "
                    "only after a finished round"
                )
            return None
        if state is None:
            raise StateError(
                f"{self.path} has no whole checkpoint of the rounds that have finished: {'; '.join(damage)}; restore "
                "one of them, or start anew and lose these rounds"
            )
        server = restore_run(self.study, state, pretrained)
        self._saved = None if damage else server.finished_rounds
        notes = [f"the run went on after this round from {BEFORE}: {damage[0]}"] if damage else []
        if not self._belongs_to and (self.path / RUN_ID).is_file():
            notes.append(f"{RUN_ID} was changed after it was written; the checkpoint names the run")
        for note in notes:
            logger.warning("round %s: %s", server.finished_rounds, note)
            server.ledger[-1].notes.append(note)
        return server

    def load_before(self, server: ServerRounds) -> ServerRounds | None:
        """Return a run as it was before its last finished round; None where the checkpoint of that is not whole.

        Args:
            server: The run after that round.
        """
        if server.finished_rounds == 1:
            return ServerRounds.start(
                self.study, server.id, {*server.ledger[0].asked} & {*server.sites}, self._pretrained
            )
        try:
            state = load_state(self.path / BEFORE, FORMAT, {"run": server.id})
        except DamagedError as error:
            logger.warning("the run cannot go back: %s", error)
            return None
        return restore_run(self.study, state, self._pretrained)

    @property
    def is_complete(self) -> bool:
        """Whether the run has all that its study asks for, so that nothing is left to go on with."""
        try:
            results = read_results(self.path)
        except ConfigError:
            return False
        if results is None or results.rounds is None or results.status != "COMPLETE":
            return False
        return results.rounds >= self.study.rounds

    def mend(self) -> None:
        """Write the ledger again where it is damaged, before a run is shown or goes on.

        Raises:
            StateError: Another version wrote the checkpoint, or the study has changed since.
        """
        state, _ = self._read_checkpoint()
        if state is None:
            return
        check_study(self.study, state)
        try:
            is_broken = read_ledger(self.path) is None
        except ConfigError:
            is_broken = True
        if is_broken:
            self._write_ledger(read_finished_rounds(state))

    def save(self, server: ServerRounds) -> None:
        """Write the checkpoint, then ledger and metrics for people; the last one of fewer rounds is kept."""
        # The checkpoint first: after a stop in between, the resumed run writes the others again.
        self.name_run(server.id)
        save_state(self.path / NEXT, FORMAT, {"run": server.id}, checkpoint(server, self._encode_rounds(server.ledger)))
        self._put_in_place(server.finished_rounds)
        self._write_records(server, {})

    def finish(self, server: ServerRounds, tests: Tests | None) -> None:
        """Write the models and, last of all, the result; nothing of a run that was ended from outside.

        Args:
            server: The run after its last round.
            tests: The sites' test scores.
        """
        if tests is not None:
            results = self._write_models(server, tests)
            # Last: where this file is, the run has finished and everything else is there.
            write_json(self.path / RESULT, dump_record(results))

    def _write_models(self, server: ServerRounds, tests: Tests) -> Results:
        """Write the models, and return the result."""
        # The ledger too: the last save may have been stopped before it.
        self._write_records(server, tests.scores)
        reported = server.reported.parts
        save_models(self.path, "last", server, server.parts)
        save_models(self.path, "best", server, reported)
        if any(part.outcome(server, tests.scores).models for part in server.parts.values()):
            describe_models(self.path, server)
        contents = None
        for part in reported.values():
            # Of several parts the first that has one makes the super model.
            contents = contents or part.outcome(server, tests.scores).make_contents()
        results = finished_results(server, tests)
        if contents is not None:
            facts = contents.facts | self._card_facts(results, tests)
            scores = tests.scores.values()
            # Where each site tests a model of its own, nobody has looked at the mean of all.
            is_tested = contents.rule == "only" or all(isinstance(score, SuperScore) for score in scores)
            operating_point = pool_operating_points(scores, self.study) if is_tested else contents.operating_point
            contents = replace(contents, facts=facts, operating_point=operating_point)
            if is_tested and self.study.task != "segmentation":
                own = find_own_operating_points(tests.scores, contents)
                contents = replace(contents, own_operating_points=own)
            for part in server.parts.values():
                contents = part.outcome(server, tests.scores).complete(contents)
            directory.write_model_folder(self.path / directory.FOLDER, contents)
        return results

    def _card_facts(self, results: Results, tests: Tests) -> dict[str, Any]:
        """Return what the model card says of the run besides the model's own facts; they decide no prediction."""
        # A simulation knows its sites' data; a network's server does not.
        data = read_file(DataCounts, self.path / DATA)
        left = {kind.name: kind.purpose for kind in list_outbound_payloads(self.study)}
        return {
            "test": dump_record(tests.scores),
            "mean": results.mean,
            "spread": results.spread,
            "joining": dump_record(results.joining) or {},
            "data": dump_record(data)["sites"] if data else {},
            # Several models may travel, each as the same kind.
            "left": [{"name": name, "purpose": purpose} for name, purpose in left.items()],
            "kept": describe_kept(self.study),
        }

    def write_phase(self, exchange: Exchange) -> None:
        """Write the task that the sites are sent, its round and step; no run fails because that cannot be written."""
        with suppress(OSError):
            write_text(self.path / PHASE, f"{exchange.task} {exchange.round} {exchange.step}")

    def write_failure(self, reason: str, run: str | None = None) -> None:
        """Write a result with the reason of the failure and the run's id; to the log where the disk takes no file."""
        try:
            write_json(self.path / RESULT, dump_record(unscored_results(self.study, "FAILED", [reason], run)))
        except OSError:
            logger.error("the run failed, and its result could not be written: %s", reason)

    def write_stop(self, server: ServerRounds, what: str) -> None:
        """Write the result of a run that was ended from outside, as `stopped_results` names what ended it."""
        results = stopped_results(self.study, server.id, server.finished_rounds, what)
        write_json(self.path / RESULT, dump_record(results))

    def copy_results(self, target: Path) -> None:
        """Copy the results without the checkpoint to another folder; nothing where it is the same folder."""
        self._copy(RESULTS, target)

    def copy_progress(self, target: Path, run: str) -> None:
        """Copy the records of the finished rounds to another folder, with the result of a run whose process is killed.

        A killed process writes nothing: its last words must be there before.
        """
        finished = len(read_ledger(self.path) or ())
        killed = stopped_results(self.study, run, finished, "the job's process at the server was killed")
        write_json(target / RESULT, dump_record(killed))
        self._copy(RECORDS, target)

    def _copy(self, patterns: Sequence[str], target: Path) -> None:
        if target.resolve() != self.path.resolve():
            for path in result_files(self.path, patterns):
                copy_file(path, target / path.relative_to(self.path))

    @property
    def _belongs_to(self) -> dict[str, str]:
        """What the checkpoints must be of; nothing before the first, and where the file that says it is damaged."""
        path = self.path / RUN_ID
        digest, _, run = path.read_bytes().partition(b" ") if path.is_file() else (b"", b"", b"")
        if digest != _digest_id(run).encode():
            return {}
        return {"run": run.decode()}

    def _put_in_place(self, finished: int) -> None:
        """Give a checkpoint that has been written its name, and that of fewer rounds the name of the one before."""
        if self._saved is not None and self._saved < finished:
            (self.path / CHECKPOINT).replace(self.path / BEFORE)
        (self.path / NEXT).replace(self.path / CHECKPOINT)
        self._saved = finished

    def _finish_save(self) -> None:
        """Put the checkpoint in its place of a save that was stopped before its renaming."""
        finished = self._count_rounds(NEXT)
        if finished is not None:
            self._saved = self._count_rounds(CHECKPOINT)
            self._put_in_place(finished)

    def _count_rounds(self, name: str) -> int | None:
        """Return the finished rounds of a checkpoint; None where it is not whole."""
        try:
            return len(read_finished_rounds(load_state(self.path / name, FORMAT, self._belongs_to)))
        except DamagedError:
            return None

    def _read_checkpoint(self) -> tuple[dict[str, Any] | None, list[str]]:
        """Return the last whole checkpoint, if any, and what is wrong with those after it."""
        damage: list[str] = []
        for name in (CHECKPOINT, BEFORE):
            try:
                return load_state(self.path / name, FORMAT, self._belongs_to), damage
            except DamagedError as error:
                damage.append(str(error))
        return None, damage

    def _encode_rounds(self, ledger: Sequence[Round]) -> list[str]:
        """Return the records of finished rounds as JSON."""
        # Anew those alone that have changed: the last one of before, and those after it. Of a long run each round would
        # otherwise take longer than the one before.
        known = max(0, min(len(self._records), len(ledger)) - 1)
        new = [json.dumps(dump_record(record), indent=1, allow_nan=False) for record in ledger[known:]]
        self._records[known:] = new
        return self._records

    def _write_ledger(self, ledger: Sequence[Round]) -> None:
        write_text(self.path / FILE, "[\n" + ",\n".join(self._encode_rounds(ledger)) + "\n]\n")

    def _write_records(self, server: ServerRounds, tests: Mapping[str, SiteScore]) -> None:
        self._write_ledger(server.ledger)
        for part in server.parts.values():
            for name, values in part.outcome(server, tests).make_files().items():
                write_json(self.path / name, values)
        self._write_metrics(server, tests)

    def _write_metrics(self, server: ServerRounds, tests: Mapping[str, SiteScore]) -> None:
        reported = server.reported
        values = {site: score.value for site, score in tests.items()}
        rounds = {site: reported.rounds.get(site, reported.round) for site in tests}
        write_text(self.path / "metrics.csv", metrics_csv(server.ledger, self.study.metric, rounds, values))


def _digest_id(run: str | bytes) -> str:
    return hashlib.sha256(run if isinstance(run, bytes) else run.encode()).hexdigest()


def result_files(folder: Path, patterns: Sequence[str] = RESULTS) -> Iterator[Path]:
    """Yield the files of a run's results in a folder, those below its folders too, and nothing else that is there."""
    for pattern in patterns:
        for path in folder.glob(pattern):
            yield from (file for file in (path, *path.rglob("*")) if file.is_file())


def check_lead(path: Path, lead: str | None, continued: str | None = None) -> None:
    """Refuse the run in a folder to everybody but the lead who began it.

    Args:
        path: The folder, which need not exist.
        lead: Who asks for it; None in a simulation.
        continued: The run's id where its lead asks to go on with it.

    Raises:
        ConfigError: It is another's, or nobody's. The sentence is that of a run that does not exist: nobody learns by
            guessing which runs there are, and whose.
    """
    owner = read_json(path / LEAD)["lead"] if (path / LEAD).is_file() else None
    is_new = owner is None and not any((path / name).exists() for name in LEFT_BY_ROUNDS)
    if continued is not None and (owner != lead or (is_new and not path.is_dir())):
        raise ConfigError(
            f"continue_run must name a run that its own lead began and this server keeps, not {continued!r}; leave it "
            "out for a new one"
        )
    if owner != lead and not is_new:
        raise ConfigError(
            "a new run must have a folder of its own at the server, not one in use; have the server's administrator "
            "put {run} into run_dir of server.yaml"
        )
