"""Small runs end with the very weights that are on record in weights.json.

A change that means to keep behaviour keeps every hash. Float sums differ between versions of torch and kinds of CPU,
so the record has a key for each; on other machines the runs are skipped, as is a run that came later than the record of
the machine at hand. At a commit that is trusted,
``RECORD_WEIGHTS=1 python -m pytest tests/end_to_end/test_same_weights.py`` records the weights of the machine at hand.
"""

import errno
import hashlib
import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from silofl.command_line.cli import main
from silofl.federation.state import SiteState
from silofl.flare.components import name_components
from silofl_desk.phantoms.phantoms import make_phantoms
from silofl_desk.studies.runs import simulate

from ..conftest import WINDOWS
from .conftest import JOBS, finished_rounds, silofl

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("decoded_here")]

RECORD = Path(__file__).with_name("weights.json")


def processor():
    """Return what tells this processor's arithmetic from another's, by which libraries choose their kernels."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []
    facts = dict([part.strip() for part in line.split(":", 1)] for line in lines if ":" in line)
    return " ".join(facts.get(name, "unknown") for name in ("vendor_id", "cpu family", "model"))


KEY = f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {processor()}"
IS_RECORDING = os.environ.get("RECORD_WEIGHTS") == "1"


@dataclass(frozen=True)
class Run:
    """One run of the record.

    Attributes:
        name: Under which its hash is recorded.
        algorithm: The study's algorithm.
        study: What else differs from the small study of its data.
        data: ``phantoms`` (segmentation) or ``windows`` (classification of movements).
        arguments: More arguments of ``silofl simulate``.
        has_pretrained: Whether it is given a pretrained model.
        stop_after: Finished rounds after which it is interrupted, to be resumed.
        absent: A site that cannot write its disk in one round, and that round.
        is_in_process: In one process; else in NVFlare's simulator.
    """

    name: str
    algorithm: dict
    study: dict = field(default_factory=dict)
    data: str = "phantoms"
    arguments: tuple = ()
    has_pretrained: bool = False
    stop_after: int | None = None
    absent: tuple[str, int] | None = None
    is_in_process: bool = True


STUDIES = {
    "phantoms": {
        "name": "small",
        "task": "segmentation",
        "labels": {1: "organ", 2: "lesion"},
        "rounds": 2,
        "baseline_comparison": False,
        "device": "cpu",
        "metric": "dice_with_background",
        "data": {
            "intensity": "percentiles",
            "transforms": [{"Resize": {"spatial_size": [32, 32]}}],
            "augment": [{"RandFlip": {"prob": 0.5, "spatial_axis": 0}}],
        },
        "model": {"features": [4, 4, 4, 4, 4, 4]},
        "training": {"batch_size": 4, "learning_rate": 0.01},
        "federation": {"max_missed_rounds": 1},
    },
    "windows": WINDOWS
    | {
        "rounds": 2,
        "baseline_comparison": False,
        "training": {
            "loss": "cross_entropy",
            "optimizer": "sgd",
            "learning_rate": 0.01,
            "momentum": 0.0,
            "batch_size": 4,
        },
        "federation": {"max_missed_rounds": 1},
    },
}
# Job folders whose filters and components fit the data's algorithms, for the simulator.
JOB_OF = {"phantoms": "fedsm_phantoms", "windows": "adafed_activity"}

# It learns in a round or two, so that the best round is the last one; with BatchNorm the best may be the first.
INSTANCE = {"model": {"normalization": "instance"}}
TWO_EPOCHS = {"training": {"local_epochs": 2}}
THREE_ROUNDS = {"rounds": 3}
FEDSM = {"name": "fedsm"}
ADAFED = {"name": "adafed", "preset": "paper"}
F_ADAFED = {"name": "adafed"}

RUNS = [
    # one model for all, and what each site keeps of it
    # The guard's models are beside those of the run, and change none of them.
    Run("fedavg", {"name": "fedavg"}, {"baseline_comparison": True}),
    Run("fedavg-uniform", {"name": "fedavg", "weights": "uniform"}),
    Run("fedavg-server-lr", {"name": "fedavg", "server_lr": 0.5}),
    Run("fedavg-epochs-sgd", {"name": "fedavg"}, {"training": {"local_epochs": 2, "optimizer": "sgd"}}),
    Run("fedprox", {"name": "fedprox", "fedprox": {"mu": 0.5}}),
    Run("fedbn", {"name": "fedbn"}),
    Run("fedper", {"name": "fedper"}),
    Run("local", {"name": "local"}, TWO_EPOCHS),
    Run("finetuning", {"name": "finetuning", "extra_rounds": 1}),
    Run("softpull", {"name": "softpull"}),
    Run("softpull-batchnorm-home", {"name": "softpull", "softpull": {"self_weight": 0.5}, "stays": "batchnorm"}),
    Run("fedavg-windows", {"name": "fedavg"}, data="windows"),
    # HarmoFL: the whole amplitude, the mean intensity alone, a radius
    Run("harmofl-paper", {"name": "harmofl", "preset": "paper"}),
    Run("harmofl-reference", {"name": "harmofl", "preset": "reference"}),
    Run("harmofl", {"name": "harmofl"}),
    Run("harmofl-radius", {"name": "harmofl", "amplitude": {"band": 3}, "perturbation": {"alpha": 0.1}}),
    Run("amplitude-local", {"name": "local", "input": "harmofl", "amplitude": {"band": 2}}),
    # FedSM: each selector, the selector that learns the best model, the ensemble, HarmoFL's step in it
    Run("fedsm", FEDSM, INSTANCE),
    Run("fedsm-selector-steps", FEDSM | {"selector": {"steps": 3}, "super_model": {"threshold": 0.5}}, INSTANCE),
    Run("fedsm-local-steps", FEDSM | {"preset": "paper", "selector": {"network": "light"}}, INSTANCE),
    Run("fedsm-moments", FEDSM | {"preset": "reference", "selector": {"network": "light"}}, INSTANCE),
    Run("fedsm-extra", FEDSM | {"selector": {"labels": "best_model"}, "extra_rounds": 2}, INSTANCE),
    Run(
        "fedsm-extra-local-steps",
        FEDSM | {"selector": {"learning": "local_steps", "labels": "best_model"}, "extra_rounds": 2},
        INSTANCE,
    ),
    Run("fedsm-ensemble", FEDSM | {"super_model": {"answer": "ensemble"}, "softpull": {"self_weight": 0.5}}, INSTANCE),
    Run("fedsm-harmofl", FEDSM | {"input": "harmofl", "amplitude": {"band": 0}, "step": "harmofl"}, INSTANCE),
    Run("fedsm-server-lr", FEDSM | {"server_lr": 0.5, "weights": "uniform"}, TWO_EPOCHS),
    # AdaFed: by all layers of a pretrained model, by its last, by running statistics; other algorithms from the model
    Run("adafed-paper", ADAFED, data="windows", has_pretrained=True),
    Run("adafed-reference", {"name": "adafed", "preset": "reference"}, data="windows", has_pretrained=True),
    Run("d-adafed", ADAFED | {"statistics": {"layers": "last"}}, data="windows", has_pretrained=True),
    Run("f-adafed", F_ADAFED, data="windows"),
    Run(
        "f-adafed-refreshed",
        F_ADAFED | {"statistics": {"refresh_every": 1, "rounds": 1}},
        {"rounds": 4},
        data="windows",
    ),
    Run("f-adafed-perturbed", F_ADAFED | {"step": "harmofl", "perturbation": {"alpha": 0.05}}, data="windows"),
    Run("f-adafed-phantoms", F_ADAFED, THREE_ROUNDS),
    Run("fedavg-pretrained", {"name": "fedavg", "start_from_pretrained": True}, data="windows", has_pretrained=True),
    # the papers' rivals: what corrects or normalises steps, the server's own steps, models beside the shared one
    Run("scaffold", {"name": "scaffold"}, THREE_ROUNDS, data="windows"),
    Run("scaffold-gradients", {"name": "scaffold", "scaffold": {"option": 1}}, data="windows"),
    Run("fednova", {"name": "fednova"}, {"training": {"momentum": 0.9}}, data="windows"),
    *(
        Run(f"fedopt-{rule}", {"name": "fedopt", "fedopt": {"rule": rule}}, data="windows")
        for rule in ("adam", "yogi", "adagrad", "momentum")
    ),
    Run("moon", {"name": "moon"}, THREE_ROUNDS, data="windows"),
    Run("moon-phantoms", {"name": "moon"}),
    Run("ditto", {"name": "ditto"}, data="windows"),
    Run("apfl", {"name": "apfl"}, data="windows"),
    Run("perfedavg", {"name": "perfedavg"}, data="windows"),
    Run("pfedme", {"name": "pfedme"}, data="windows"),
    Run("fedrep", {"name": "fedrep"}, TWO_EPOCHS, data="windows"),
    # stopped and resumed; a site absent in its first round, or in a later one; a site left out
    Run("fedbn-resumed", {"name": "fedbn"}, THREE_ROUNDS, stop_after=1),
    Run("harmofl-resumed", {"name": "harmofl"}, THREE_ROUNDS, stop_after=2),
    Run("fedsm-resumed", FEDSM, THREE_ROUNDS | INSTANCE, stop_after=2),
    Run("f-adafed-resumed", F_ADAFED, {"rounds": 4}, data="windows", stop_after=3),
    Run("fedavg-late-site", {"name": "fedavg"}, absent=("south", 1)),
    Run("harmofl-absent-site", {"name": "harmofl"}, THREE_ROUNDS, absent=("south", 2)),
    Run("fedsm-absent-site", FEDSM, THREE_ROUNDS | INSTANCE, absent=("east", 2)),
    Run("f-adafed-absent-site", F_ADAFED, {"rounds": 4}, data="windows", absent=("ann", 3)),
    Run("fedbn-left-out", {"name": "fedbn"}, arguments=("--leave-out", "south")),
    # the same through NVFlare
    Run("fedsm-simulator", FEDSM, INSTANCE, is_in_process=False),
    Run("adafed-simulator", ADAFED, data="windows", has_pretrained=True, is_in_process=False),
]


# Beside each of these a run that is like it, or shorter, is always carried out.
LONG = (
    "fedavg-epochs-sgd",
    "fedavg-server-lr",
    "fedavg-uniform",
    "softpull-batchnorm-home",
    "harmofl-paper",
    "harmofl-radius",
    "harmofl-reference",
    "harmofl-resumed",
    "fedsm",
    "fedsm-absent-site",
    "fedsm-ensemble",
    "fedsm-extra-local-steps",
    "fedsm-harmofl",
    "fedsm-local-steps",
    "fedsm-moments",
    "fedsm-selector-steps",
    "fedsm-server-lr",
    "f-adafed-phantoms",
    "moon-phantoms",
)


def is_slow(run):
    return run.name in LONG or not run.is_in_process


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hospitals") / "data"
    return make_phantoms(folder, seed=7, patients={"north": 7, "east": 6, "south": 6})


@pytest.fixture(scope="module")
def volunteers(tmp_path_factory, windows):
    """The sites of `windows`, of which eva shares no statistics, and two more, so that AdaFed's weights differ."""
    folder = tmp_path_factory.mktemp("volunteers") / "data"
    shutil.copytree(windows, folder, ignore=shutil.ignore_patterns(".*"))
    for name, scale in {"kim": 1.5, "leo": 0.5}.items():
        (folder / name).mkdir()
        values = np.load(windows / "ann" / "windows.npz")["windows"]
        np.savez(folder / name / "windows.npz", windows=(scale * values + scale).astype(np.float32))
        content = (windows / "ann" / "dataset.json").read_text()
        (folder / name / "dataset.json").write_text(content.replace('"ann"', f'"{name}"'))
    return folder


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory, volunteers):
    folder = tmp_path_factory.mktemp("pretrained")
    job = write_job(folder / "job", Run("pretrained", {"name": "fedavg"}, data="windows"))
    assert main(["pretrain", str(job), "--data", str(volunteers), "--out", str(folder / "f.pt"), "--epochs", "2"]) == 0
    return folder / "f.pt"


@pytest.fixture(scope="module")
def recorded():
    """The hashes on record for this machine's torch and CPU."""
    record = json.loads(RECORD.read_text())
    if KEY not in record and not IS_RECORDING:
        pytest.skip(f"{RECORD.name} has no weights of {KEY} to compare with, only of {', '.join(record)}")
    return record.get(KEY, {})


@pytest.fixture
def carried_out(tmp_path, hospitals, volunteers, request, monkeypatch):
    """Carry out a run of the record; returns its folder."""

    def carry_out(run):
        folder, data = tmp_path / "run", {"phantoms": hospitals, "windows": volunteers}[run.data]
        command = ["simulate", write_job(tmp_path / "job", run), "--data", data, "--out", folder, *run.arguments]
        if run.has_pretrained:
            command += ["--pretrained", request.getfixturevalue("pretrained")]
        if not run.is_in_process:
            silofl(*command)
            return folder
        disk = Disk(folder, run.absent, run.stop_after)
        monkeypatch.setattr(os, "replace", disk.replace)
        # Drawing takes longer than training, and changes no weights.
        monkeypatch.setattr(simulate, "write_report", lambda run: run / "report.html")
        code = main([*map(str, command), "--in-process"])
        if run.stop_after is not None:
            assert code == 130 and finished_rounds(folder) == run.stop_after
            code = main(["resume", str(folder)])
        assert code == 0 and disk.was_full == (run.absent is not None)
        return folder

    return carry_out


class Disk:
    """Puts files in place, but fails a site in one round, or interrupts the run once after a round."""

    def __init__(self, run, absent, stop_after):
        self.run, self.absent, self.stop_after, self.put = run, absent, stop_after, os.replace
        self.was_full = False

    def replace(self, source, target, **options):
        target = Path(target)
        if self.absent is not None:
            site, number = self.absent
            if self.run / "sites" / site in target.parents and finished_rounds(self.run) == number - 1:
                self.was_full = True
                raise OSError(errno.ENOSPC, "no space left")
        self.put(source, target, **options)
        if target == self.run / "ledger.json" and finished_rounds(self.run) == self.stop_after:
            self.stop_after = None
            raise KeyboardInterrupt


def write_job(job, run):
    """Write the job folder of a run of the record."""
    shutil.copytree(JOBS / JOB_OF[run.data], job)
    study = STUDIES[run.data] | {"algorithm": run.algorithm}
    for key, value in run.study.items():
        study[key] = study.get(key, {}) | value if isinstance(value, dict) else value
    (job / "app" / "config" / "study.yaml").write_text(yaml.safe_dump(study))
    name_components(job / "app" / "config", run.algorithm["name"])
    return job


def final_models(run):
    """Return all models that a finished run wrote, by what each is; one that all sites share counts for each site."""
    sites = sorted(path.name for path in (run / "sites").iterdir())
    models = {}
    for path in (run / "model").glob("*.pt"):
        which, _, site = path.stem.partition("-")
        models |= {f"{which} {name}": load(path) for name in ([site] if site else sites)}
    models |= {f"super model {path.stem}": load(path) for path in (run / "supermodel" / "weights").glob("*.pt")}
    for site in sites:
        own = (run / "sites" / site).glob("*/supermodel/weights/*.pt")
        models |= {f"at {site} {path.stem}": load(path) for path in own}
    return models


def last_models(run):
    """Return the models of the last round of a finished run that keeps everything at home, as `final_models` does."""
    models = {}
    for path in (run / "sites").glob("*/*/rounds"):
        site, number = path.parent.parent.name, finished_rounds(run)
        _, kept = SiteState(path, path.parent.name, site).load(number)
        home = {name.removeprefix("model/"): value.numpy() for name, value in kept["models"]["home"].items()}
        models[f"at {site} {site}"] = home
    return models


def load(path):
    return {name: value.numpy() for name, value in torch.load(path, weights_only=True).items()}


def hash_of(models):
    """Return the SHA-256 of the arrays themselves: what the files are like beside them does not count."""
    digest = hashlib.sha256()
    for model, arrays in sorted(models.items()):
        for name, array in sorted(arrays.items()):
            digest.update(f"{model} {name} {array.dtype} {array.shape} ".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize(
    "run", [pytest.param(run, id=run.name, marks=pytest.mark.slow if is_slow(run) else ()) for run in RUNS]
)
def test_a_run_ends_with_the_weights_on_record(run, recorded, carried_out):
    if run.name not in recorded and not IS_RECORDING:
        pytest.skip(f"{RECORD.name} has no weights of {run.name} on this kind of machine to compare with")
    folder = carried_out(run)
    # Whose round is reported is each site's own affair.
    models = last_models(folder) if run.algorithm["name"] == "local" else final_models(folder)
    found = hash_of(models)
    known = recorded.get(run.name, [])
    # Machines of one kind may differ in what libraries choose their kernels by: then a run has several hashes.
    known = [known] if isinstance(known, str) else known
    if IS_RECORDING and found not in known:
        known = [*known, found]
        recorded[run.name] = known if len(known) > 1 else found
        write(recorded)
    assert models and found in known


def write(recorded):
    """Put this machine's hashes into the record, in the order of the runs."""
    hashes = {run.name: recorded[run.name] for run in RUNS if run.name in recorded}
    RECORD.write_text(json.dumps(json.loads(RECORD.read_text()) | {KEY: hashes}, indent=1) + "\n")


def test_every_run_is_on_record_for_some_machine():
    records = json.loads(RECORD.read_text())
    names = [run.name for run in RUNS]
    assert set().union(*records.values()) == set(names)
    for key, hashes in records.items():
        assert list(hashes) == [name for name in names if name in hashes], key
