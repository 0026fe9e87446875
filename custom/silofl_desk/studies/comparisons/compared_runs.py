"""Plan the runs of a comparison, and check that an earlier run in the same folder is the same one."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from silofl.base.errors import ConfigError
from silofl.base.files import is_free
from silofl.base.settings import flatten_keys
from silofl.core.recipe import Recipe
from silofl.data.counts import list_changed_sites
from silofl.study import STORED, Study, load_study, plain_study
from silofl_desk.options import replaces
from silofl_desk.report.run_records import flat_settings
from silofl_desk.studies.comparisons.comparison import CENTRALISED
from silofl_desk.studies.comparisons.conditions import NORMALIZATION
from silofl_desk.studies.comparisons.methods import find_method_algorithm
from silofl_desk.studies.runs.simulated_sites import read_data
from silofl_desk.studies.runs.simulation import (
    Simulation,
    changed_study,
    changes_algorithm,
    check_pretrained,
    read_simulation,
    settle_job,
    study_file,
)


@dataclass(frozen=True)
class ComparisonPlan:
    """The jobs, methods and settings of a comparison.

    Attributes:
        jobs: Job folders; every method uses the first one's study.
        methods: As `silofl_desk.studies.comparisons.methods.find_method_algorithm` takes them.
        variants: Name of a row -> its changes to the first job's study, by dotted key.
        changes: Changes to the study of every row, by dotted key.
        seeds: Of the runs of each row.
        data: Folder that holds one data folder a site; where None, ``phantoms``, made at first use.
        is_pooled: Whether the centralised upper bound is run too.
        pretrained: File of a pretrained model for those that need one.
        weights: File of weights that everybody starts from, in the rows without a pretrained model.
        is_in_process: Whether all sites of a run take turns in one process, without NVFlare.
        cache: Folder of decoded images; in the folder of the data where None.
        skip_unreadable: Share of a site's cases that may be left out because they cannot be read.
        has_equal_rounds: Whether extra rounds, of fine-tuning or of a selector alone, count among the study's.
    """

    jobs: tuple[Path, ...]
    methods: tuple[str, ...] = ()
    variants: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    changes: Mapping[str, object] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0, 1, 2)
    data: str | None = None
    is_pooled: bool = False
    pretrained: str | None = None
    weights: str | None = None
    is_in_process: bool = False
    cache: str | None = None
    skip_unreadable: float = 0.0
    has_equal_rounds: bool = False


@dataclass(frozen=True)
class ComparedRun:
    """One run of a row.

    Attributes:
        name: Name of the row: of a job, a method or a variant.
        seed: Of the study.
        path: Folder of the run.
        job: The job that it runs.
        wanted: Data and sites.
        changes: Changes to the job's study, by dotted key.
    """

    name: str
    seed: int
    path: Path
    job: Path
    wanted: Simulation
    changes: Mapping[str, object]

    @property
    def has_started(self) -> bool:
        """Whether the folder has a run that can be shown or resumed."""
        return (self.path / "run.json").is_file()


def plan_runs(asked: ComparisonPlan, out: Path) -> list[ComparedRun]:
    """Return the runs of all jobs, variants and methods in the order of the rows, every study and all data checked.

    Raises:
        ConfigError: A job, a method, a change or a seed is wrong, or an earlier run in ``out`` is another.
        DataError: A site's data is wrong.
    """
    _check_changes(asked)
    main_job = asked.jobs[0]
    entries: list[tuple[str, Path, Mapping[str, object]]] = [(job.resolve().name, job, {}) for job in asked.jobs]
    entries += [(name, main_job, changes) for name, changes in asked.variants.items()]
    entries += [(name, main_job, _find_changes(asked, name)) for name in list_other_methods(asked)]
    # Rows of one name would share their runs' folders.
    folders = Counter(_folder_name(name) for name, _, _ in entries)
    folders[CENTRALISED] += 1
    for name, number in folders.items():
        if number > 1:
            raise ConfigError(f"Several jobs, methods or --as are named {name!r}. Rename the job's folder.")
    wanted = Simulation(
        asked.data,
        is_in_process=asked.is_in_process,
        cache=asked.cache,
        skip_unreadable=asked.skip_unreadable,
    )
    runs = []
    for name, job, changes in entries:
        runs += make_seeded_runs(asked, out, ComparedRun(name, 0, out, job, wanted, changes))
    check_all_data(runs)
    # The folders keep the names of the jobs, which do not change when another row is added.
    names = _name_jobs(runs, {job.resolve().name for job in asked.jobs})
    return [replace(run, name=names.get(run.name, run.name)) for run in runs]


def _name_jobs(runs: Sequence[ComparedRun], jobs: Collection[str]) -> dict[str, str]:
    """Return row of a job -> its algorithm, as the methods are named; without jobs that are not alone in it."""
    names = {}
    for run in runs:
        if run.name in jobs:
            algorithm = changed_study(run.job, run.changes).algorithm
            names[run.name] = algorithm.name
            # A method's name without a preset stands for the recommended one.
            if algorithm.preset != "recommended":
                names[run.name] += f":{algorithm.preset}"
    counts = Counter([*names.values(), *{run.name for run in runs}])
    return {row: name for row, name in names.items() if counts[name] == 1}


def list_other_methods(asked: ComparisonPlan) -> list[str]:
    """Return the methods that are not what the first job does by itself, which has a row already."""
    if not asked.methods:
        return []
    # The recipes are compared, since a preset's constants and those that the job names are alike in them.
    recipe = changed_study(asked.jobs[0], asked.changes).recipe
    return [name for name in asked.methods if _find_recipe(asked, name) != recipe]


def _find_recipe(asked: ComparisonPlan, method: str) -> Recipe | None:
    """Return the recipe of the first job with a method; None where it has none, which the method's row will say."""
    try:
        return changed_study(asked.jobs[0], {**_find_changes(asked, method), **asked.changes}).recipe
    except ConfigError:
        return None


def _find_changes(asked: ComparisonPlan, method: str) -> dict[str, object]:
    """Return a method's changes to the first job's study: its algorithm, and BatchNorm if it keeps or compares that."""
    algorithm: dict[str, object] = {"algorithm": find_method_algorithm(method)}
    with_batchnorm = algorithm | {NORMALIZATION: "batch"}
    for changes in (algorithm, with_batchnorm):
        with suppress(ConfigError):
            study = changed_study(asked.jobs[0], changes | {**asked.changes})
            has_batchnorm = "batch" in study.model.normalization
            if changes is with_batchnorm or study.recipe.stays != "batchnorm" or has_batchnorm:
                return changes
    # What else is wrong is said of the row.
    return algorithm


def make_seeded_runs(asked: ComparisonPlan, out: Path, pattern: ComparedRun) -> list[ComparedRun]:
    """Return a checked run for each seed, with name, job, simulation and changes of the pattern."""
    runs = []
    for seed in asked.seeds:
        # What is set for the whole comparison wins over a row's own, and the row's over its job.
        changes = {**pattern.changes, **asked.changes, "seed": seed}
        run = replace(pattern, seed=seed, path=run_folder(out, pattern.name, seed), changes=changes)
        if asked.has_equal_rounds:
            run = replace(run, changes=changes | _equal_rounds(run))
        study, _ = _settle_run(run)
        # Both files are given to all rows together: no row starts from two, and some refuse a pretrained model.
        if study.recipe.needs_pretrained:
            wanted = replace(run.wanted, pretrained=asked.pretrained)
        else:
            wanted = replace(run.wanted, weights=asked.weights)
        runs.append(replace(run, wanted=wanted))
    for run in runs:
        _check_startable(run)
    return runs


def run_folder(out: Path, name: str, seed: int) -> Path:
    """Return the folder of a row's run with a seed."""
    return out / "runs" / f"{_folder_name(name)}-seed{seed}"


def _equal_rounds(run: ComparedRun) -> dict[str, object]:
    """Return the change to a study's rounds that makes room for its extra ones."""
    study, _ = _settle_run(run)
    extra = study.recipe.extra_rounds
    if extra >= study.rounds:
        raise ConfigError(
            f"{run.name}: rounds must be more than its {extra} extra ones with --equal-rounds, not {study.rounds}; "
            "give more --rounds, or set fewer algorithm.extra_rounds"
        )
    return {"rounds": study.rounds - extra} if extra else {}


def check_all_data(runs: Sequence[ComparedRun]) -> None:
    """Read and cache the data of each row, so that a fault shows early; the seeds of a row share them.

    Raises:
        DataError: A site's data is wrong.
    """
    # The names of rows whose data have been read.
    read: set[str] = set()
    for run in runs:
        if run.name not in read:
            study, simulation = _settle_run(run)
            read_data(study, simulation, run.path)
            read.add(run.name)


def _check_changes(asked: ComparisonPlan) -> None:
    """Refuse changes to every row that would replace what a row is named for."""
    rows = {f"--as {name}": changes for name, changes in asked.variants.items()}
    rows |= {f"--methods {name}": {"algorithm": find_method_algorithm(name)} for name in asked.methods}
    for changes in (asked.changes, *asked.variants.values()):
        if "seed" in changes:
            raise ConfigError("--set changes the seed. Give the seeds with --seeds.")
    if (asked.methods or asked.is_pooled) and changes_algorithm(asked.changes):
        raise ConfigError(
            "--set changes the algorithm of every row, but --methods and --pooled bring their own. Name the row that "
            "it is for with --as."
        )
    for option, changes in rows.items():
        for key, _ in flatten_keys(changes):
            for common in asked.changes:
                if replaces(common, key):
                    raise ConfigError(
                        f"--set {common} would replace {key} of {option}. Set it before the --as of each row that it "
                        "is for."
                    )


def _folder_name(name: str) -> str:
    # A method's name has a colon, which not every file system takes.
    return re.sub(r"[^\w.=-]+", "-", name)


def _check_startable(run: ComparedRun) -> None:
    """Refuse a run that could not start, or whose folder contains something else."""
    study, simulation = _settle_run(run)
    # An earlier run is used again, which a changed study or other data would make another one.
    if run.has_started:
        _check_same(run, study, simulation)
        return
    with _name_errors(run):
        check_pretrained(run.job, study, simulation)
    if not is_free(run.path):
        raise ConfigError(f"Folder {run.path} holds something that is no run. Remove it.")


def _settle_run(run: ComparedRun) -> tuple[Study, Simulation]:
    with _name_errors(run):
        return settle_job(run.job, run.wanted, run.changes)


@contextmanager
def _name_errors(run: ComparedRun) -> Iterator[None]:
    """Begin the errors of a run with its name."""
    try:
        yield
    except ConfigError as error:
        # Of many rows, nobody could tell which one is wrong.
        raise ConfigError(f"{run.name}: {error}") from None


def _check_same(run: ComparedRun, study: Study, simulation: Simulation) -> None:
    """Refuse an earlier run of another study, or on other data or sites."""
    # The run's own copy of the study counts: the job may have been edited since.
    trained = load_study(study_file(run.path / "job"), STORED)
    wanted = flat_settings(plain_study(study))
    used = flat_settings(plain_study(trained))
    # The pairs that only one of them has name the keys that differ.
    differences = sorted(dict(wanted.items() ^ used.items()))
    earlier = read_simulation(run.path)
    for key in ("data", "sites", "left_out", "pretrained", "weights"):
        if getattr(earlier, key) != getattr(simulation, key):
            differences.append(f"{key} of the run")
    differences += [f"data of {site}" for site in list_changed_sites(run.path, simulation.data_folder, trained)]
    if differences:
        raise ConfigError(
            f"{run.path} holds another run, which differs in {', '.join(differences)}. Remove it, or choose another "
            "--out."
        )
