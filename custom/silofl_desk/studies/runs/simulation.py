"""The settings of a simulation (study, sites and data), checked before anything is trained."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from silofl.base.bundled_jobs import META
from silofl.base.errors import ConfigError, quote_value, suggest_nearest
from silofl.base.files import copy_file, copy_folder, is_free, read_json, write_json, write_text
from silofl.base.naming import check_name, is_one_line
from silofl.base.schema import declare_optional, read_record
from silofl.base.settings import check_key, dump_yaml, parse, read_yaml
from silofl.flare.components import check_components, name_components
from silofl.inference.contents import PLAIN_NAME
from silofl.models.roles import GLOBAL, SELECTOR
from silofl.models.weights import read_pretrained, read_start, read_weights
from silofl.study import Study, load_study
from silofl.study.former_keys import rename_former_keys
from silofl_desk.flare.workspace import other_classes
from silofl_desk.phantoms.phantoms import LABELS, UNSEEN_SITE, VOLUMES, is_phantoms, make_phantoms
from silofl_desk.phantoms.stains import LABELS as STAINS
from silofl_desk.phantoms.stains import make_stains
from silofl_desk.studies.runs.weights import with_weights

BATCHNORM_FILTER = "silofl.flare.filters.BatchNormStaysHome"


@dataclass(frozen=True)
class Simulation:
    """The settings of a simulation besides its job, written to ``run.json``, so that it can be resumed.

    Attributes:
        data: Folder that holds one data folder a site; where None, ``phantoms``, in 3D ``phantom_volumes``, of a
            classification ``stains``, made at first use.
        sites: The sites that take part; where empty, all with a ``dataset.json``.
        left_out: A site that does not take part; the finished super model is tested on all its cases.
        pretrained: File of a pretrained model, in place of one that lies in the job.
        weights: File of weights that everybody starts from, in place of what the job says of it.
        is_in_process: Whether all sites take turns in one process, without NVFlare.
        cache: Folder of decoded images, which runs share; in the folder of the data where None.
        skip_unreadable: Share of a site's cases that may be left out because they cannot be read.
        trusts_code: Whether a job's own code may run, and others' classes that it names; said anew where a run goes on,
            whose folder may be somebody else's.
    """

    # Release 0.4 wrote the key on the left.
    RENAMED_KEYS: ClassVar = {"is_alone": "is_in_process"}
    FORMER_KEYS: ClassVar = ("threads",)

    data: str | None = None
    sites: tuple[str, ...] = ()
    left_out: str | None = declare_optional()
    pretrained: str | None = declare_optional()
    weights: str | None = declare_optional()
    is_in_process: bool = declare_optional(False)
    cache: str | None = declare_optional()
    skip_unreadable: float = declare_optional(0.0)
    trusts_code: bool = declare_optional(False)

    @property
    def data_folder(self) -> Path:
        """The folder of the sites' data, which `settle_job` and `read_simulation` fill in."""
        return Path(str(self.data))

    @property
    def start_file(self) -> Path | None:
        """The file that everybody starts from, in place of the job's own, where one is given."""
        given = self.pretrained or self.weights
        return Path(given) if given else None


@dataclass(frozen=True)
class Moved:
    """The folders of an earlier run that are others now; as the run read them where None.

    Attributes:
        data: Folder that holds one data folder a site.
        cache: Folder of decoded images, which runs share.
    """

    data: Path | None = None
    cache: Path | None = None


UNMOVED = Moved()


def read_simulation(run: Path, moved: Moved = UNMOVED) -> Simulation:
    """Return the settings of an earlier run from its ``run.json``, which also holds the changes to its study.

    Args:
        run: Folder of the run.
        moved: Folders in place of those that it names.

    Raises:
        ConfigError: The file is broken, a site's name in it is none, or the folder of decoded images is a file.
    """
    path = run / "run.json"
    settings = read_json(path)
    # They stand in the run's copy of the study too, which counts.
    settings.pop("changes", None)
    simulation = read_record(Simulation, settings, str(path))
    check_no_file(moved.cache, "--cache")
    # A run may come from elsewhere, and its sites' states are written by their names.
    _check_site_names(simulation.sites)
    if simulation.left_out is not None:
        _check_site_names([simulation.left_out])
    if moved.data:
        simulation = replace(simulation, data=str(moved.data.resolve()))
    if moved.cache:
        simulation = replace(simulation, cache=str(moved.cache.resolve()))
    return simulation


def check_run(run: Path) -> None:
    """Refuse a folder that holds no simulation.

    Raises:
        ConfigError: Its run.json is missing.
    """
    if not (run / "run.json").is_file():
        raise ConfigError(f"{run} holds no simulation; run.json is missing. Name the folder given to --out.")


def check_new(out: Path | None) -> None:
    """Refuse a folder for results that holds something.

    Raises:
        ConfigError: It does, or none is named.
    """
    if out is None:
        raise ConfigError("The results have no folder. Name a new one with --out.")
    if not is_free(out):
        raise ConfigError(f"{out} already exists. Name a new or empty folder with --out.")


def check_no_file(path: str | Path | None, option: str) -> None:
    """Refuse a file where an option names a folder, which may be new.

    Raises:
        ConfigError: It is one.
    """
    if path is not None and Path(path).is_file():
        raise ConfigError(f"{path} is a file. Name a folder with {option}.")


def settle_job(job: Path, wanted: Simulation, changes: Mapping[str, object]) -> tuple[Study, Simulation]:
    """Return a job's study with its changes, by dotted key, and the simulation with all sites named.

    Raises:
        ConfigError: The job, the study or the command is wrong.
    """
    study = changed_study(job, with_weights(changes, wanted.weights))
    if study.rehearsal:
        raise ConfigError("study.yaml sets rehearsal, but a simulation has no hospitals to rehearse with. Remove it.")
    # Where the command changes the algorithm, the run's copy of the job is fitted to it.
    check_components(study_file(job).parent, load_study(study_file(job)).algorithm.name)
    if wanted.data is None and study.labels not in (LABELS, STAINS):
        raise ConfigError(f"{study.name} needs the sites' data. Name their folder with --data.")
    simulation = _settle_sites(wanted, study)
    _check_quorum(study, simulation)
    return study, simulation


def study_file(job: Path) -> Path:
    """Return the study.yaml of a job folder.

    Raises:
        ConfigError: The folder is no NVFlare job of ours.
    """
    path = job / "app" / "config" / "study.yaml"
    for part in (job / META, path):
        if not part.exists():
            raise ConfigError(f"{job} is no job folder; {part.relative_to(job)} is missing")
    return path


def check_code(job: Path, simulation: Simulation) -> None:
    """Refuse a job that brings code or names others', which NVFlare would run with all rights here, unless trusted.

    Raises:
        ConfigError: It brings code, or names a class that SiloFL's own jobs do not.
    """
    if simulation.trusts_code:
        return
    for path in sorted(job.glob("*/custom")):
        if path.is_symlink() or any(path.iterdir()):
            raise ConfigError(
                f"{job} brings code, {path.relative_to(job)}, which would run here with all your rights. Read it, then "
                "give simulate --trust-code, or remove it; SiloFL's own jobs bring none."
            )
    foreign = other_classes(job)
    if foreign:
        raise ConfigError(
            f"{job} names {foreign[0]}, a class that no job of SiloFL's own names. It would run here with all your "
            "rights: read what it does, then give simulate --trust-code, or remove it from the job's configuration."
        )


def check_links(run: Path) -> None:
    """Refuse a run's folder with links: what goes on there would be written, or deleted, where they lead.

    Raises:
        ConfigError: It holds one.
    """
    link = next((path for path in run.rglob("*") if path.is_symlink()), None)
    if link is not None:
        raise ConfigError(
            f"{run} holds the link {link.relative_to(run)}, which may lead anywhere. Put what it leads to in its "
            "place, or remove it."
        )


def check_pretrained(job: Path, study: Study, simulation: Simulation) -> None:
    """Refuse a study whose pretrained model or weights are missing or of another network, or not needed.

    Raises:
        ConfigError: What is wrong with the file, or that the study needs none.
    """
    given = simulation.pretrained
    if study.model.weights:
        read_weights(Path(simulation.weights or study_file(job).with_name(study.model.weights)), study)
    # What a survey may tell is each hospital's own setting, which simulated sites do not have.
    if study.asks_alone:
        raise ConfigError(f"{study.name} only asks sites and trains no model. Give it to silofl run.")
    if not study.rounds:
        read_start(study_file(job).parent, study)
    elif study.recipe.needs_pretrained:
        read_pretrained(Path(given) if given else study_file(job).with_name(study.model.pretrained), study)
    elif given:
        raise ConfigError(f"{study.name} needs no pretrained model. Leave out --pretrained.")


def fit_configurations(job: Path, study: Study) -> None:
    """Fit a copied job's configurations to its study's algorithm.

    They name its executor and its controller, and have the filter that keeps BatchNorm at home only where it must stay.
    """
    path = study_file(job).with_name("config_fed_client.json")
    # This rewrites the file that is read next.
    name_components(path.parent, study.algorithm.name)
    config = read_json(path)
    batchnorm_filter = {"tasks": ["train"], "filters": [{"path": BATCHNORM_FILTER, "args": {}}]}
    # The filter is taken out first, so that a job that has it already does not get it twice.
    filters = [chain for chain in config["task_result_filters"] if chain != batchnorm_filter]
    if study.recipe.stays == "batchnorm":
        filters.append(batchnorm_filter)
    write_json(path, config | {"task_result_filters": filters})


def changed_study(job: Path, changes: Mapping[str, object]) -> Study:
    """Return a job's study with changes by dotted key, as ``training.batch_size``, checked as its study.yaml is.

    Raises:
        ConfigError: The folder is no job, its study is wrong, or a key or value of the changes is.
    """
    path = study_file(job)
    # What is wrong without the changes is told as of the file.
    load_study(path)
    # A key that no study has is named with the nearest one that it has.
    for key in changes:
        check_key(key, Study)
    return parse(Study, apply_changes(read_yaml(path), changes), "study.yaml with the changes")


def copy_job(job: Path, target: Path, changes: Mapping[str, object], start_file: Path | None = None) -> Study:
    """Copy a job's folder, change the copy as `change_job` does, and return its study.

    Args:
        changes: Dotted key -> value.
        start_file: The pretrained model or the weights that the study names, in place of the job's own.

    Raises:
        ConfigError: The folder is no job, its study is wrong, or a key or value of the changes is; nothing is written.
    """
    changed_study(job, changes)
    copy_folder(job, target)
    study = change_job(target, changes)
    if start_file and study.model_file:
        copy_file(start_file, study_file(target).with_name(study.model_file))
    return study


def change_job(job: Path, changes: Mapping[str, object]) -> Study:
    """Write changes by dotted key into a job's study.yaml, whose comments are then lost, and return the study.

    Its configurations are fitted to another algorithm, its meta.json to another name and other sites.

    Raises:
        ConfigError: The folder is no job, its study is wrong, or a key or value of the changes is; nothing is written.
    """
    study = changed_study(job, changes)
    if changes:
        path = study_file(job)
        write_text(path, dump_yaml(apply_changes(read_yaml(path), changes)))
        fit_meta(job, study, changes)
    # NVFlare reads the algorithm's components from the configurations, not from the study.
    if changes_algorithm(changes):
        fit_configurations(job, study)
    return study


def fit_meta(job: Path, study: Study, changed: Iterable[str]) -> None:
    """Fit a copied job's meta.json to its study, by the dotted keys that are new in it."""
    keys = set(changed)
    path = job / META
    meta = read_json(path)
    if "name" in keys:
        meta["name"] = study.name
    if "federation.min_sites" in keys:
        # NVFlare itself waits for so many sites before it starts a job.
        meta["min_clients"] = study.federation.min_sites
    if "federation.sites" in keys:
        named = study.federation.named
        # NVFlare sends the job to the sites that are listed here.
        meta["deploy_map"] = {"app": ["server", *named] if named else ["@ALL"]}
    write_json(path, meta)


def apply_changes(values: Mapping[str, Any], changes: Mapping[str, object]) -> dict[str, Any]:
    """Return a copy of a study's plain values, with the values of some dotted keys replaced.

    Another ``algorithm.name`` takes the place of the whole section but for what the changes themselves set in it: its
    other keys were chosen for the algorithm before.
    """
    # With its new name, a key of the file and a change of it are one key.
    result, _ = rename_former_keys(values)
    name = changes.get("algorithm.name")
    earlier = result.get("algorithm")
    if name is not None and isinstance(earlier, dict) and earlier.get("name") != name:
        del result["algorithm"]
    # The values are copied, since a later key may lie within an earlier one's value.
    for dotted, value in deepcopy(dict(changes)).items():
        *sections, key = dotted.split(".")
        settings = result
        for section in sections:
            if not isinstance(settings.get(section), dict):
                settings[section] = {}
            settings = settings[section]
        # Labels have numbers as keys, which a dotted key has as text.
        settings[next((typed for typed in settings if str(typed) == key), key)] = value
    return result


def changes_algorithm(changes: Mapping[str, object]) -> bool:
    """Return whether changes by dotted key concern the algorithm."""
    return any(key.partition(".")[0] == "algorithm" for key in changes)


def _provide_phantoms(study: Study) -> Path:
    """Return the folder of the simulated hospitals that suit a study, made at first use."""
    if study.labels == STAINS:
        return make_stains(Path("stains"))
    if study.data.dimensions == 3:
        return make_phantoms(Path("phantom_volumes"), kind=VOLUMES)
    return make_phantoms(Path("phantoms"))


def _settle_sites(wanted: Simulation, study: Study) -> Simulation:
    """Check the data folder and the named sites, and fill in all sites."""
    data = Path(wanted.data) if wanted.data else _provide_phantoms(study)
    sites = wanted.sites
    present = sorted(path.parent.name for path in data.glob("*/dataset.json"))
    available = present.copy()
    # The phantoms' last hospital is the clinic that trains in no study and tests the models.
    if study.rounds and is_phantoms(data) and UNSEEN_SITE in present:
        available.remove(UNSEEN_SITE)
    if not available:
        raise ConfigError(f"{data} holds no site's folder with a dataset.json. Write one with silofl import.")
    _check_site_names(available)
    if not sites and {*study.federation.named} <= {*available} - {wanted.left_out}:
        sites = study.federation.named
    for name in sites:
        if name not in available:
            raise ConfigError(
                f"--sites must be among {', '.join(available)}, not {name!r}{suggest_nearest(name, available)}"
            )
    # Who names the sites has seen all folders; who does not would lose one silently by a file that is missing.
    if not sites:
        _check_complete(data, present)
    if wanted.left_out is not None:
        available = _drop_left_out(wanted.left_out, available, present, sites)
    names = tuple(sorted({*sites}) or available)
    _check_names(names, wanted.is_in_process)
    check_no_file(wanted.cache, "--cache")
    # A run that goes on later may do so from another working folder.
    cache = wanted.cache and str(Path(wanted.cache).resolve())
    return replace(wanted, data=str(data.resolve()), sites=names, cache=cache)


def _check_complete(data: Path, present: Collection[str]) -> None:
    """Refuse a folder of data in which some site's folder has no ``dataset.json``."""
    incomplete = []
    for path in sorted(data.iterdir()):
        # A hidden folder is a cache, and no site's.
        if path.is_dir() and not path.name.startswith(".") and path.name not in present:
            incomplete.append(path.name)
    if incomplete:
        raise ConfigError(
            f"{data} has folders without a dataset.json: {', '.join(incomplete)}. Add it there, move them away, or "
            "name the sites that take part with simulate --sites."
        )


def _check_names(sites: Sequence[str], is_in_process: bool) -> None:
    """Refuse names that a model of the run could not bear at its end, or that NVFlare's simulator takes for a path."""
    for name in sites:
        if not PLAIN_NAME.fullmatch(name) or name in (GLOBAL, SELECTOR):
            raise ConfigError(
                f"Site name {name!r} is reserved, or has characters other than letters, digits, '.', '_' and '-'. "
                "Rename its folder."
            )
        if "." in name and not is_in_process:
            raise ConfigError(
                f"Site name {name!r} has a dot, which NVFlare's simulator takes for a path. Rename its folder, or give "
                "silofl simulate --in-process."
            )


def _check_site_names(names: Iterable[str]) -> None:
    """Refuse a site's name that leads elsewhere than to one folder, or commands a terminal or another program."""
    for name in names:
        if name in ("", ".", "..") or "/" in name or not is_one_line(name):
            raise ConfigError(
                f"Site name {quote_value(name)} names no folder, is not UTF-8, or has line breaks or control "
                "characters. Rename the site."
            )
        check_name(name, "a site", ConfigError, "rename its folder")


def _drop_left_out(left_out: str, available: list[str], present: list[str], sites: tuple[str, ...]) -> list[str]:
    """Return the training sites without the one that is left out."""
    if left_out not in present:
        raise ConfigError(
            f"--leave-out must be among {', '.join(present)}, not {left_out!r}{suggest_nearest(left_out, present)}"
        )
    if left_out in sites:
        raise ConfigError(f"Site {left_out!r} is left out and in --sites. Take it out of --sites.")
    rest = [name for name in available if name != left_out]
    if not rest:
        raise ConfigError(f"Without {left_out!r}, the only site, none is left to train. Add sites.")
    return rest


def _check_quorum(study: Study, simulation: Simulation) -> None:
    """Refuse a study that waits for more sites than take part."""
    num_sites = len(simulation.sites)
    named = study.federation.named
    if named and {*named} != {*simulation.sites}:
        raise ConfigError(
            f"federation.sites names {', '.join(named)}, but {', '.join(simulation.sites)} take part. Name them with "
            "simulate --sites, or simulate any with --set federation.sites=null."
        )
    for key, wanted in (("min_sites", study.federation.min_sites), ("sites", study.federation.num_sites or 0)):
        if wanted > num_sites:
            raise ConfigError(
                f"federation.{key} must be at most {num_sites}, the number of sites that take part "
                f"({', '.join(simulation.sites)}), not {wanted}; lower it in study.yaml, for one run with simulate "
                f"--set federation.{key}={num_sites}, or let more sites take part"
            )
