"""A running job as its study lead watches it: a status line, and plain values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from silofl.base.errors import make_printable
from silofl.base.schema import dump_record
from silofl.federation.ledger import Round
from silofl.federation.round_line import Whole, describe_rise, last_round, seconds_left, typical_seconds
from silofl.flare.in_flight import InFlight
from silofl.parts.task import TRAIN
from silofl.training.metrics import mean_of_known
from silofl_desk.studies.runs.progress import describe_task
from silofl_hospital.report.tables import format_duration

# A round that takes more than so many times the usual time waits for somebody; nobody knows then how long.
OVERDUE = 2
# The server hears a site that is there every few seconds, whatever it works on.
SILENT_S = 60.0
# NVFlare's words for the status of a job.
RUNNING = "RUNNING"
COMPLETED = "FINISHED:COMPLETED"


@dataclass(frozen=True)
class Watched:
    """What is known of a job.

    Attributes:
        job: NVFlare's id of it.
        status: NVFlare's word for its status.
        has_ended: Whether this is its last.
        run: The run's id; None while the job has not said it, as the study.
        study: The study's name.
        total_rounds: All rounds of the study.
        metric: Name of the sites' scores.
        ledger: The finished rounds.
        ends_early: Whether `total_rounds` is only the most.
        quiet_rounds: Rounds that raise nothing and so end the run; None where that is not known.
        in_flight: What the sites work on; None where that is nothing, or is not known.
        heard: Connected site -> when the server last heard it, by the server's clock.
        second_machines: Site -> the address of another machine that the server refused under its name.
        queue: What a job that has not begun waits for; empty of any other.
    """

    job: str
    status: str
    has_ended: bool
    run: str | None
    study: str | None
    total_rounds: int
    metric: str
    ledger: Sequence[Round]
    ends_early: bool = False
    quiet_rounds: int | None = None
    in_flight: InFlight | None = None
    heard: Mapping[str, float] = field(default_factory=dict)
    second_machines: Mapping[str, str] = field(default_factory=dict)
    queue: str = ""

    @cached_property
    def last_round(self) -> int:
        """The round with which the run ends if no later one raises the validation."""
        return last_round(self, self.ledger)

    @property
    def seconds_left(self) -> float | None:
        """The estimated time of the rounds that are left; None where nothing is known, or nothing is left.

        That of a round in flight has gone by already; one that is overdue may take as long as a site is waited for.
        """
        is_training = 0 < len(self.ledger) < self.last_round and not self.has_ended
        if not is_training:
            return None
        elapsed = self.in_flight.seconds if self.in_flight else 0.0
        typical = typical_seconds(self.ledger)
        return None if elapsed > OVERDUE * typical else seconds_left(self, self.ledger) - min(elapsed, typical)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for programs; None is what a job has not said, as one that ended before it was asked."""
        is_known = self.run is not None
        return {
            "job": self.job,
            "status": self.status,
            "run": self.run,
            "study": self.study,
            "metric": self.metric if is_known else None,
            "rounds": {"finished": len(self.ledger), "total": self.total_rounds} if is_known else None,
            "seconds_left": self.seconds_left,
            "in_flight": dump_record(self.in_flight),
            "heard": dict(self.heard),
            "second_machines": dict(self.second_machines),
            "queue": self.queue or None,
            "ledger": [_round_values(record) for record in self.ledger] if is_known else None,
        }


def _round_values(record: Round) -> dict[str, Any]:
    return {
        "round": record.round,
        "seconds": record.seconds,
        "loss": mean_of_known(values.get("loss") for values in record.metrics.values()),
        "validation": record.validation_mean,
        "answered": record.answered,
        "failed": record.failed,
    }


def status_line(watched: Watched) -> str:
    """Say in one line how far a job is, and in further ones what its sites work on and who uses a site's name."""
    name = watched.study or f"job {watched.job}"
    lines = [f"{name} is {watched.status}; {_describe_progress(watched)}"]
    if watched.queue:
        lines.append(watched.queue)
    if watched.in_flight and not watched.has_ended:
        lines.append(describe_in_flight(watched.in_flight, watched.heard, watched, watched.ledger))
    for site, address in sorted(watched.second_machines.items()):
        lines.append(f"{site} runs on another machine too; the server refused the one at {address}: call {site}")
    # Names come from the server; each line is made printable by itself, as a line break within one is none of ours.
    return "\n".join(map(make_printable, lines))


def _describe_progress(watched: Watched) -> str:
    if not watched.ledger:
        return "it has ended" if watched.has_ended else "no round has finished"
    most = "at most " if watched.ends_early else ""
    done = f"{len(watched.ledger)} of {most}{watched.total_rounds} rounds"
    if watched.seconds_left is not None:
        left = f"{most or 'about '}{format_duration(watched.seconds_left)} left"
        return "; ".join(filter(None, (f"{done}, {left}", describe_rise(watched, watched.ledger))))
    # After the last round the sites still test, which may take as long as a round.
    is_testing = len(watched.ledger) >= watched.last_round and not watched.has_ended
    return f"{done}; the sites are testing the model" if is_testing else done


def describe_in_flight(task: InFlight, heard: Mapping[str, float], whole: Whole, ledger: Sequence[Round]) -> str:
    """Say what sites work on and for how long, who has answered, and who is waited for and was last heard when.

    As ``round 7 has run for 20.0 s (usually 9.0 s); answered: east; waiting for south (last heard 9.0 s ago)``.

    Args:
        task: What they work on.
        heard: Connected site -> when the server last heard it, which is every few seconds of one that is there.
    """
    elapsed = format_duration(task.seconds)
    if task.task == TRAIN:
        sentences = [f"round {task.round} has run for {elapsed}"]
        if ledger:
            sentences[0] += f" (usually {format_duration(typical_seconds(ledger))})"
    else:
        sentences = [f"{describe_task(task.task, task.round, whole.total_rounds)} for {elapsed}"]
    if task.answered:
        sentences.append(f"answered: {', '.join(task.answered)}")
    if task.failed:
        sentences.append(f"failed: {', '.join(task.failed)}")
    if task.waiting:
        waiting = [f"{site} ({_describe_silence(task.now, heard.get(site))})" for site in task.waiting]
        sentences.append(f"waiting for {', '.join(waiting)}")
    # Names and times come from the server.
    return make_printable("; ".join(sentences))


def _describe_silence(now: float, heard: float | None) -> str:
    # The server has heard nothing of a site that is not connected.
    if heard is None:
        return "not connected"
    seconds = max(0.0, now - heard)
    sentence = f"last heard {format_duration(seconds)} ago"
    return f"{sentence}: stopped or cut off?" if seconds > SILENT_S else sentence
