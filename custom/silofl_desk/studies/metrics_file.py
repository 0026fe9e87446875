"""A watched job as numbers for Prometheus: a file that node_exporter's textfile collector reads."""

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from silofl.base.files import write_text
from silofl.federation.round_line import typical_seconds
from silofl.parts.task import TRAIN
from silofl_desk.studies.watched import COMPLETED, Watched

# Name, without the silofl_ that all have -> what it says. All are gauges: a job that goes on counts anew.
HELP = {
    "written_seconds": "When this was written, in seconds since 1970",
    "job_ended": "1 once the job has ended",
    "job_failed": "1 once the job has ended otherwise than completed",
    "rounds_finished": "Finished rounds of the run",
    "rounds_planned": "All rounds of the study",
    "round_age_seconds": "Time since the round in flight began",
    "round_usual_seconds": "Time that a round takes",
    "site_missing": "1 for a site that is not in the round: failed, not connected, or not in the last one",
    "site_score": "Newest validation score of a site",
    "site_received_bytes": "Bytes of arrays that a site received in all rounds",
    "site_sent_bytes": "Bytes of arrays that a site sent in all rounds",
    "site_heard_age_seconds": "Time since the server heard a site",
    "site_second_machine": "1 for a site under whose name the server lately refused another machine",
}


def write_metrics(watched: Watched, path: Path) -> None:
    """Write the numbers of a job, in one step and for every account to read, as node_exporter has one of its own.

    Raises:
        ConfigError: They cannot be written there.
    """
    # The collector reads files that end in .prom.
    unfinished = path.with_name(f".{path.name}.unfinished")
    write_text(unfinished, format_metrics(watched))
    unfinished.chmod(0o644)
    os.replace(unfinished, path)


def format_metrics(watched: Watched) -> str:
    """Return the numbers of a job in Prometheus's text format."""
    samples: dict[str, list[str]] = {name: [] for name in HELP}
    # Not job, which is Prometheus's own label.
    common = {"study": watched.study or "", "job_id": watched.job}
    for name, labels, value in _list_samples(watched):
        listed = ",".join(f'{key}="{_escape(text)}"' for key, text in (common | dict(labels)).items())
        samples[name].append(f"silofl_{name}{{{listed}}} {value:.10g}")
    return "".join(
        "\n".join([f"# HELP silofl_{name} {HELP[name]}", f"# TYPE silofl_{name} gauge", *lines, ""])
        for name, lines in samples.items()
        if lines
    )


def _list_samples(watched: Watched) -> Iterator[tuple[str, Mapping[str, str], float]]:
    yield "written_seconds", {}, int(time.time())
    yield "job_ended", {}, watched.has_ended
    yield "job_failed", {}, watched.has_ended and watched.status != COMPLETED
    task = watched.in_flight
    if watched.run is not None:
        yield "rounds_finished", {}, len(watched.ledger)
        yield "rounds_planned", {}, watched.total_rounds
    if watched.ledger:
        yield "round_usual_seconds", {}, typical_seconds(watched.ledger)
    if task and not watched.has_ended:
        if task.task == TRAIN:
            yield "round_age_seconds", {}, task.seconds
        for site, at in watched.heard.items():
            yield "site_heard_age_seconds", {"site": site}, max(0.0, task.now - at)
    for site in () if watched.has_ended else watched.sites:
        yield "site_missing", {"site": site}, site in watched.missing
    for site in watched.second_machines:
        yield "site_second_machine", {"site": site}, 1
    for site in watched.sites:
        scores = [record.validated[site] for record in watched.ledger if site in record.validated]
        if scores:
            yield "site_score", {"site": site, "metric": watched.metric}, scores[-1]
        yield "site_received_bytes", {"site": site}, sum(record.bytes_to.get(site, 0) for record in watched.ledger)
        yield "site_sent_bytes", {"site": site}, sum(record.bytes_from.get(site, 0) for record in watched.ledger)


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
