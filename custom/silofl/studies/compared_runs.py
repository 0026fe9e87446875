"""The runs of a comparison: what each is made of, and whether an earlier one in the same place is the same."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from silofl.errors import ConfigError, nearest
from silofl.inference.directory import plain_study
from silofl.studies import simulate
from silofl.studies.methods import METHODS
from silofl.studies.simulation import Simulation, check_pretrained, settled, study_file
from silofl.study import Study, load_study

CENTRALISED = "centralised"


@dataclass(frozen=True)
class Comparison:
    """What is to be compared.

    Attributes:
        jobs: Job folders; the first one's study is that of every method.
        methods: Names out of `METHODS`.
        seeds: Of the runs of each job and method.
        rounds: Instead of the studies'.
        data: Folder that holds one data folder a site; where None, ``phantoms``, made at first use.
        threads: Sites that NVFlare runs at a time; all where None.
        is_pooled: Whether the centralised upper bound is run too.
        pretrained: File of a pretrained model for those that need one.
        is_alone: Whether all sites of a run take turns in one process, without NVFlare.
    """

    jobs: tuple[Path, ...]
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0, 1, 2)
    rounds: int | None = None
    data: str | None = None
    threads: int | None = None
    is_pooled: bool = False
    pretrained: str | None = None
    is_alone: bool = False


@dataclass(frozen=True)
class Run:
    """One run of a job or a method.

    Attributes:
        name: The job's or the method's.
        seed: Of the study.
        path: Folder of the run.
        job: The job it is made of.
        wanted: Data, sites and threads.
        changes: Keys of the job's study that differ.
    """

    name: str
    seed: int
    path: Path
    job: Path
    wanted: Simulation
    changes: dict[str, object]

    @property
    def has_started(self) -> bool:
        """Whether the folder holds a run, which can be shown or resumed."""
        return (self.path / "run.json").is_file()


def planned(asked: Comparison, out: Path) -> list[Run]:
    """Return the runs of all jobs and methods in the order of the rows, every study and all data checked.

    Raises:
        ConfigError: A job, a method or a seed is wrong, or an earlier run in ``out`` is another.
        DataError: A site's data is wrong.
    """
    if len(set(asked.seeds)) != len(asked.seeds):
        raise ConfigError(f"--seeds must name each seed once, not {','.join(map(str, asked.seeds))}")
    entries = [(job.resolve().name, job, {}) for job in asked.jobs]
    entries += [(name, asked.jobs[0], {"algorithm": _algorithm(name)}) for name in asked.methods]
    names = [name for name, *_ in entries]
    for name in names:
        if [*names, CENTRALISED].count(name) > 1:
            raise ConfigError(
                f"jobs and methods must have names of their own, not {name!r} twice; rename the job's folder"
            )
    wanted = Simulation(asked.data, (), asked.threads, is_alone=asked.is_alone)
    return [
        run for name, job, changes in entries for run in seeded(asked, out, Run(name, 0, out, job, wanted, changes))
    ]


def seeded(asked: Comparison, out: Path, pattern: Run) -> list[Run]:
    """Return a run for each seed, checked; of the pattern, name, job, simulation and changes count."""
    runs = []
    for seed in asked.seeds:
        changes = pattern.changes | {"seed": seed} | ({} if asked.rounds is None else {"rounds": asked.rounds})
        path = out / "runs" / f"{pattern.name}-seed{seed}"
        study, _ = settled(pattern.job, pattern.wanted, changes)
        given = asked.pretrained if study.recipe.needs_pretrained else None
        runs.append(Run(pattern.name, seed, path, pattern.job, replace(pattern.wanted, pretrained=given), changes))
    for run in runs:
        _check(run, reads_data=run is runs[0])
    return runs


def _algorithm(name: str) -> dict[str, object]:
    if name not in METHODS:
        raise ConfigError(f"--methods must be among {', '.join(METHODS)}, not {name!r}{nearest(name, METHODS)}")
    return METHODS[name]


def _check(run: Run, reads_data: bool) -> None:
    """Refuse a run that could not start, or whose folder holds something else; seeds share their data."""
    try:
        study, simulation = settled(run.job, run.wanted, run.changes)
        if not run.has_started:
            check_pretrained(run.job, study, simulation)
    except ConfigError as error:
        raise ConfigError(f"{run.name}: {error}") from None
    if run.has_started:
        _check_same(run, study, simulation)
    elif run.path.exists() and (not run.path.is_dir() or any(run.path.iterdir())):
        raise ConfigError(f"{run.path} must hold a run or nothing, not something else; remove it")
    if reads_data:
        simulate.read_data(study, simulation, run.path)


def _check_same(run: Run, study: Study, simulation: Simulation) -> None:
    """Refuse an earlier run of another study, or on other data or sites."""
    wanted, found = plain_study(study), plain_study(load_study(study_file(run.path / "job")))
    differences = [key for key in sorted(wanted.keys() | found.keys()) if wanted.get(key) != found.get(key)]
    settings = _settings(run.path / "run.json")
    here = {"data": simulation.data, "sites": list(simulation.sites), "left_out": None}
    here |= {"pretrained": simulation.pretrained}
    differences += [f"{key} of the run" for key, value in here.items() if settings.get(key) != value]
    if differences:
        raise ConfigError(
            f"{run.path} must be a run of what is asked for, not one that differs in {', '.join(differences)}; "
            "remove it, or choose another --out"
        )


def _settings(path: Path) -> dict[str, object]:
    try:
        settings = json.loads(path.read_text())
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        raise ConfigError(f"{path} must be the run.json that silofl wrote; it is broken: remove the run")
    return settings
