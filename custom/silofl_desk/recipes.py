"""NVFlare recipes: a study as a Python call, carried out in NVFlare's own environments; docs/python.md shows them.

recipe = HarmoFLRecipe("harmofl_phantoms", rounds=4)
run = recipe.execute(SimEnv(clients=["north", "east"], workspace_root="runs"))
print(silofl.read_results(run.get_result()).sites)
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Literal

from silofl.base.bundled_jobs import find_job
from silofl.base.errors import ExitCode
from silofl.base.options import make_console
from silofl.study import load_study
from silofl_desk.flare.folder_recipe import FolderRecipe
from silofl_desk.flare.submission import check_job
from silofl_desk.options import path_to_text
from silofl_desk.studies.runs.simulate import simulate_job
from silofl_desk.studies.runs.simulation import Simulation, changed_study, check_pretrained, copy_job, study_file
from silofl_desk.studies.runs.weights import find_weights_file, with_weights


def declare_setting(key: str) -> Any:  # noqa: ANN401 - of the argument's own type
    """Declare an argument that sets a dotted key of the study; the job's own value stays where it is None."""
    return field(default=None, metadata={"key": key})


@dataclass(kw_only=True, eq=False)
class StudyRecipe(FolderRecipe):
    """The study of a job, some of whose settings are changed.

    Attributes:
        job: Name of a bundled job, as ``harmofl_nuclei``, or the folder of one that ``silofl new-study`` has written.
        data: Of a simulation: folder with one folder per site. Without it a study of phantoms makes its own.
        cache: Of a simulation: folder of decoded images, which runs share; in the folder of the data if None.
        trusts_code: Of a simulation: whether the job's own code may run, and others' classes that it names.
        pretrained: File of a pretrained model, as ``silofl pretrain`` writes it, for a study that needs one; it goes
            with the job.
        weights: Weights that everybody starts from, which go with the job: a ``.pt`` or ``.safetensors`` file, a
            finished run or a MONAI bundle.
        changes: Any settings by dotted key, as ``{"training.optimizer": "sgd"}``; ``silofl schema study`` lists all.
        preset: The algorithm's named choice of settings.
        rounds: Number of rounds.
        seed: Seed of the training.
        local_epochs: Epochs of each site in a round.
        batch_size: Images of a step.
        learning_rate: Learning rate of the sites.

    Raises:
        ConfigError: There is no such job, a setting is wrong, or a given file is none of the study's network.
    """

    algorithm: ClassVar[str | None] = None

    job: str | Path = field(kw_only=False)
    data: str | Path | None = None
    cache: str | Path | None = None
    trusts_code: bool = False
    pretrained: str | Path | None = None
    weights: str | Path | None = None
    changes: Mapping[str, object] = field(default_factory=dict)
    preset: Literal["paper", "reference", "recommended"] | None = declare_setting("algorithm.preset")
    rounds: int | None = declare_setting("rounds")
    seed: int | None = declare_setting("seed")
    local_epochs: int | None = declare_setting("training.local_epochs")
    batch_size: int | None = declare_setting("training.batch_size")
    learning_rate: float | None = declare_setting("training.learning_rate")

    def __post_init__(self) -> None:
        """Write the changed job into a folder of its own, which is deleted with the recipe."""
        self.job = find_job(self.job)
        start = Simulation(
            pretrained=path_to_text(self.pretrained),
            weights=None if self.weights is None else str(find_weights_file(Path(self.weights))),
        )
        changes = with_weights(self._changes(), start.weights)
        if start.start_file:
            check_pretrained(self.job, changed_study(self.job, changes), start)
        self._scratch = TemporaryDirectory(prefix="silofl-")
        self.folder = Path(self._scratch.name) / "job"
        self.study = copy_job(self.job, self.folder, changes, start.start_file)
        super().__init__(self.study.name, self.folder)

    def simulate(self, workspace: Path, sites: tuple[str, ...]) -> int:
        """Carry out a simulation as ``silofl simulate`` does, in the place of an earlier one there.

        Raises:
            ConfigError: The sites or the job are wrong.
            DataError: A site's data is wrong.
        """
        run = workspace / "server" / "simulate_job" / "silofl"
        shutil.rmtree(run, ignore_errors=True)
        wanted = Simulation(
            data=path_to_text(self.data), sites=sites, cache=path_to_text(self.cache), trusts_code=self.trusts_code
        )
        code = simulate_job(self.folder, run, wanted, {}, make_console())
        # NVFlare takes any other code for a failure; an INCOMPLETE run has its result.
        return 0 if code == ExitCode.INCOMPLETE else code

    def check_submission(self) -> None:
        """Print what sites may refuse of the job.

        Raises:
            ConfigError: No server takes it.
        """
        for notice in check_job(self.folder, self.study):
            print(notice)

    def _changes(self) -> dict[str, object]:
        """Return the changes to the job's study by dotted key, those of the arguments last."""
        keys = {one.name: one.metadata["key"] for one in fields(self) if "key" in one.metadata}
        given = {key: getattr(self, name) for name, key in keys.items() if getattr(self, name) is not None}
        is_other = self.algorithm not in (None, load_study(study_file(Path(self.job))).algorithm.name)
        return {**({"algorithm.name": self.algorithm} if is_other else {}), **self.changes, **given}


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
