"""Which sites took part in a site's earlier runs of a study.

The models of two runs of one study, one with a hospital and one without it, tell this hospital's update. A site
therefore trains in no run whose sites differ in so few from those of another run that has delivered a model.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

from silofl.base.errors import ConfigError, TrainingError
from silofl.base.files import hold_lock, make_folder, write_json
from silofl.base.schema import dump_record, read_file
from silofl.federation.egress import Request
from silofl.federation.egress_log import LOCK
from silofl.parts.load import find_test_task
from silofl.parts.task import TRAIN
from silofl.setup.site import Site
from silofl.study import Study

# Beside the runs of a study.
FILE = "past_runs.json"


@dataclass(frozen=True)
class PastRun:
    """A run of a study.

    Attributes:
        sites: All that took part in it, this one too, by the server's word.
        has_delivered: Whether its model was tested, and so handed to the study lead.
    """

    sites: tuple[str, ...] = ()
    has_delivered: bool = False


@dataclass(frozen=True)
class PastRuns:
    """The content of past_runs.json.

    Attributes:
        runs: Id -> the run.
    """

    runs: dict[str, PastRun] = field(default_factory=dict)


def check_past_runs(settings: Site, study: Study, site: str, request: Request) -> None:
    """Record the sites of a run, and refuse one that differs from another run of the study in too few of them.

    Args:
        request: A task of the run, before it is carried out.

    Raises:
        TrainingError: It does; the sentence may leave the site. Or the record cannot be read.
    """
    # An evaluation and sites that train alone make no model of all. A hospital that asks for no partners lets its own
    # update be known.
    has_shared_model = study.rounds > 0 and not study.recipe.trains_alone
    if study.rehearsal or not has_shared_model or not settings.min_partners or not request.partners:
        return
    folder = settings.state_folder(study.name, site)
    try:
        past = read_file(PastRuns, folder / FILE) or PastRuns()
    except ConfigError as error:
        raise TrainingError(
            f"site {site!r} cannot read {FILE}, which says with whom it has trained; restore the file"
        ) from error
    current = past.runs.get(request.run, PastRun())
    sites = frozenset(current.sites) | frozenset(request.partners)
    fewest = max(settings.min_partners, 2)
    for run, earlier in past.runs.items():
        is_compared = run != request.run and (earlier.has_delivered or _is_running(folder / run))
        difference = sites.symmetric_difference(earlier.sites)
        if is_compared and 0 < len(difference) < fewest and study.name not in settings.repeats:
            raise TrainingError(
                f"site {site!r} trained in another run of study {study.name!r} that differs from this one in "
                f"{', '.join(sorted(difference))} alone, whose update the two models would tell; let the same sites "
                "take part, or ask the site to name the study in repeats of site.yaml"
            )
    # The record is written before the task is carried out, so that a process that is killed leaves it.
    has_delivered = current.has_delivered or request.task == find_test_task(study)
    if request.task == TRAIN or has_delivered:
        now = replace(current, sites=tuple(sorted(sites)), has_delivered=has_delivered)
        if now != current:
            make_folder(folder)
            write_json(folder / FILE, dump_record(PastRuns({**past.runs, request.run: now})))


def _is_running(folder: Path) -> bool:
    """Return whether a process works on a run: two that run at once would both deliver before either is recorded."""
    if not (folder / LOCK).is_file():
        return False
    try:
        with hold_lock(folder / LOCK):
            return False
    except ConfigError:
        return True
