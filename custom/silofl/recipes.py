"""NVFlare recipes: a study as a Python call, carried out in NVFlare's own environments; docs/python.md shows them.

recipe = HarmoFLRecipe("jobs/harmofl_phantoms", rounds=4)
run = recipe.execute(SimEnv(clients=["north", "east"], workspace_root="runs"))
print(silofl.read_results(run.get_result()).sites)
"""

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar, Literal

from silofl.flare.folder_recipe import FolderRecipe
from silofl.flare.submission import check_job
from silofl.studies.prepare import prepare_poc_kits, prepare_simulation, tell_numbers
from silofl.studies.simulation import Simulation, copy_job, study_file
from silofl.study import load_study


def declare_setting(key: str) -> Field:
    """Declare an argument that sets a dotted key of the study; the job's own value stays where it is None."""
    return field(default=None, metadata={"key": key})


@dataclass(kw_only=True, eq=False)
class StudyRecipe(FolderRecipe):
    """The study of a job, some of whose settings are changed.

    Attributes:
        job: Folder of the job, as ``jobs/harmofl_nuclei``, or one that ``silofl new-study`` has written.
        data: Of a simulation and a POC: folder with one folder per site. Without it a study of phantoms makes its own.
        trusts_code: Of a simulation and a POC: whether the job's own code may run, and others' classes that it names.
        changes: Any settings by dotted key, as ``{"training.optimizer": "sgd"}``; docs/study.md lists all keys.
        preset: The algorithm's named choice of settings.
        rounds: Number of rounds.
        seed: Seed of the training.
        local_epochs: Epochs of each site in a round.
        batch_size: Images of a step.
        learning_rate: Learning rate of the sites.

    Raises:
        ConfigError: The folder is no job, or a setting is wrong.
    """

    algorithm: ClassVar[str | None] = None

    job: str | Path = field(kw_only=False)
    data: str | Path | None = None
    trusts_code: bool = False
    changes: Mapping[str, object] = field(default_factory=dict)
    preset: Literal["paper", "reference", "recommended"] | None = declare_setting("algorithm.preset")
    rounds: int | None = declare_setting("rounds")
    seed: int | None = declare_setting("seed")
    local_epochs: int | None = declare_setting("training.local_epochs")
    batch_size: int | None = declare_setting("training.batch_size")
    learning_rate: float | None = declare_setting("training.learning_rate")

    def __post_init__(self) -> None:
        """Write the changed job into a folder of its own, which is deleted with the recipe."""
        self._scratch = TemporaryDirectory(prefix="silofl-")
        self.folder = Path(self._scratch.name) / "job"
        self.study = copy_job(Path(self.job), self.folder, self._changes())
        super().__init__(self.study.name, self.folder)

    def prepare_simulation(self, workspace: Path, sites: tuple[str, ...]) -> None:
        """Prepare the workspace of a simulation, and read its data, so that a fault shows before any training.

        Raises:
            ConfigError: The sites, the job or the workspace are wrong.
            DataError: A site's data is wrong.
        """
        _, chosen = prepare_simulation(workspace, self.folder, self._wanted(), sites)
        _print_numbers(chosen)

    def prepare_poc(self) -> int:
        """Prepare the kits of NVFlare's POC and return the number of its sites; the errors of `prepare_simulation`."""
        _, chosen = prepare_poc_kits(self.folder, self._wanted())
        _print_numbers(chosen)
        return len(chosen)

    def check_submission(self) -> None:
        """Print what sites may refuse of the job.

        Raises:
            ConfigError: No server takes it.
        """
        for doubt in check_job(self.folder, self.study):
            print(doubt)

    def _wanted(self) -> Simulation:
        return Simulation(data=None if self.data is None else str(self.data), trusts_code=self.trusts_code)

    def _changes(self) -> dict[str, object]:
        """Return the changes to the job's study by dotted key, those of the arguments last."""
        keys = {one.name: one.metadata["key"] for one in fields(self) if "key" in one.metadata}
        given = {key: getattr(self, name) for name, key in keys.items() if getattr(self, name) is not None}
        is_other = self.algorithm not in (None, load_study(study_file(Path(self.job))).algorithm.name)
        return {**({"algorithm.name": self.algorithm} if is_other else {}), **self.changes, **given}


def _print_numbers(sites: Mapping[str, str]) -> None:
    if numbers := tell_numbers(sites):
        print(numbers)


@dataclass(kw_only=True, eq=False)
class HarmoFLRecipe(StudyRecipe):
    """HarmoFL (Jiang et al., AAAI 2022) on the study of a job; further arguments as in `StudyRecipe`.

    Attributes:
        alpha: Length of the weight perturbation, above 0.
        band: ``full``, or the radius of the frequencies whose amplitude is normalised; 0 is the mean intensity alone.
        momentum: The paper's v of the running amplitude, in [0, 1].
    """

    algorithm = "harmofl"

    alpha: float | None = declare_setting("algorithm.perturbation.alpha")
    band: Literal["full"] | int | None = declare_setting("algorithm.amplitude.band")
    momentum: float | None = declare_setting("algorithm.amplitude.momentum")


@dataclass(kw_only=True, eq=False)
class FedSMRecipe(StudyRecipe):
    """FedSM (Xu et al., CVPR 2022) on the study of a job; further arguments as in `StudyRecipe`.

    Attributes:
        self_weight: The paper's lambda, the weight of a site's own model in SoftPull, in [1/K, 1] for K sites.
        threshold: The paper's gamma, in [0, 1], or ``tuned`` on the sites' validation data.
    """

    algorithm = "fedsm"

    self_weight: float | None = declare_setting("algorithm.softpull.self_weight")
    threshold: Literal["tuned"] | float | None = declare_setting("algorithm.super_model.threshold")


@dataclass(kw_only=True, eq=False)
class AdaFedRecipe(StudyRecipe):
    """AdaFed (Chen et al., arXiv:2112.00734) on the study of a job; further arguments as in `StudyRecipe`.

    Attributes:
        self_weight: The paper's lambda, the weight of a site's own model, in (0, 1].
        source: What sites are compared by: a ``pretrained`` model's layers, or their own ``running`` statistics.
        layers: Of the pretrained model: ``all`` BatchNorm layers, or the ``last`` layer (d-AdaFed).
    """

    algorithm = "adafed"

    self_weight: float | None = declare_setting("algorithm.statistics.self_weight")
    source: Literal["pretrained", "running"] | None = declare_setting("algorithm.statistics.source")
    layers: Literal["all", "last"] | None = declare_setting("algorithm.statistics.layers")
