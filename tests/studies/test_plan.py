"""Plans for phantoms: small volumes in two contrasts, and few thick slices."""

import json
import shutil

import numpy as np
import pytest
import torch
import yaml

from silofl.models.networks import build_plain_model
from silofl.study import load_study
from silofl_desk.phantoms.phantoms import VOLUMES, make_phantoms
from silofl_desk.studies.simulation import study_file
from tests.conftest import count_cases

from ..conftest import SMALL_UNET
from .conftest import JOB

JOBS = JOB.parent
VOLUMES_JOB = JOBS / "harmofl_volumes"
DYNUNET = "model={network: monai.networks.nets.DynUNet, normalization: instance}"
FACTS = {"cases": 1, "spacing_mm": [1.0], "shape": [9.0], "classes": [1.0]}
PLAIN = ("--set", "algorithm={name: fedavg}", "--set", "device=cpu")


@pytest.fixture(scope="session")
def volumes(tmp_path_factory):
    """Volumes of two sites with 6 patients each, of whom one is in training."""
    return make_phantoms(tmp_path_factory.mktemp("volumes") / "data", patients={"north": 6, "west": 6}, kind=VOLUMES)


@pytest.fixture
def plan(silofl):
    """Plan and return the planned values by key, and all that the plan says."""

    def ask(job, *options):
        code, out, error = silofl("plan", job, "--json", *options)
        assert code == 0, error
        found = json.loads(out)
        return {one["key"]: one["value"] for one in found["decisions"]}, found

    return ask


def test_volumes_are_planned_from_both_sites(plan, volumes):
    values, found = plan(VOLUMES_JOB, "--data", volumes)
    assert found["warnings"] == []
    spacings = {site: facts["spacing_mm"] for site, facts in found["sites"].items()}
    assert spacings == {"north": [5, 5, 5], "west": [5.2, 5.2, 5.5]}
    # of one case each the lower is the median; west has 60 x 50 voxels, north 64 x 52
    grid = [{"Orientation": {"axcodes": "LPS"}}, {"Spacing": {"pixdim": [5, 5, 5]}}]
    assert values["data.volume_transforms"] == grid
    assert values["data.patches.size"][:2] == [64, 64] and values["data.channel_names"] == ["T1", "T2"]


def test_the_planned_study_says_why(silofl, volumes, tmp_path):
    code, out, error = silofl("plan", VOLUMES_JOB, "--data", volumes, "--out", tmp_path / "planned", *PLAIN)
    assert code == 0, error
    assert "X x Y x Z, mm; 1 of pictures" in out and f"silofl simulate {tmp_path / 'planned'} --data {volumes}" in out
    file = study_file(tmp_path / "planned")
    text, study = file.read_text(), load_study(file)
    assert "# planned, planned from harmofl_volumes and the training data of north, west" in text
    assert "volume_transforms:  # nnU-Net: the median spacing by axis, 5 x 5 x 5 mm" in text
    # the planned key of another network says how it is chosen
    words = " ".join(text.replace("\n#", "").split())
    assert "only those of MONAI's DynUNet are planned" in words
    assert DYNUNET in words and DYNUNET in " ".join(out.split())
    # rules of the volumes alone; what nobody planned is the job's
    job = load_study(study_file(VOLUMES_JOB))
    assert (study.data.patches.per_volume, study.data.augment) == (job.data.patches.per_volume, job.data.augment)
    assert (study.name, study.algorithm.name, study.model) == ("planned", "fedavg", job.model)
    assert json.loads((tmp_path / "planned" / "meta.json").read_text())["name"] == "planned"
    # FedAvg's BatchNorm leaves, HarmoFL's does not
    filters = [study_file(job).with_name("config_fed_client.json") for job in (VOLUMES_JOB, tmp_path / "planned")]
    assert ["BatchNormStaysHome" in path.read_text() for path in filters] == [True, False]


@pytest.fixture
def blobs_job(tmp_path):
    """A job for pictures, with the labels of the sites' data."""
    job = shutil.copytree(JOBS / "harmofl_nuclei", tmp_path / "job")
    study = yaml.safe_load(study_file(job).read_text()) | {"labels": {1: "blob"}}
    study_file(job).write_text(yaml.safe_dump(study))
    return job


def test_arguments_that_monai_does_not_know_are_refused(silofl, site_data, blobs_job, tmp_path):
    options = ("--out", tmp_path / "own", "--set", DYNUNET, "--set", "model.arguments={dropped: 1}")
    code, _, error = silofl("plan", blobs_job, "--data", site_data, *PLAIN, *options)
    assert code == 2 and not (tmp_path / "own").exists()
    assert "model.arguments must be among" in error and "not 'dropped'" in error


@pytest.mark.long
def test_the_planned_study_trains(silofl, volumes, tmp_path):
    assert silofl("plan", VOLUMES_JOB, "--data", volumes, "--out", tmp_path / "planned", *PLAIN)[0] == 0
    small = ("rounds=1", "guard=false", "training.local_epochs=1", "data.patches.per_volume=2")
    small = (*small, f"model={json.dumps(SMALL_UNET)}")
    settings = [text for one in small for text in ("--set", one)]
    run = tmp_path / "run"
    code, _, error = silofl("simulate", tmp_path / "planned", "--data", volumes, "--out", run, "--alone", *settings)
    assert code == 0, error
    assert count_cases(json.loads((run / "results.json").read_text())) == {"north": 3, "west": 3}


def test_a_dynunet_is_planned_for_the_patch(silofl, volumes, tmp_path):
    options = ("--out", tmp_path / "own", *PLAIN, "--set", DYNUNET)
    assert silofl("plan", VOLUMES_JOB, "--data", volumes, *options)[0] == 0
    study = load_study(study_file(tmp_path / "own"))
    assert "alone are planned" not in study_file(tmp_path / "own").read_text()
    steps = np.prod(study.model.arguments["strides"], axis=0)
    assert (np.array(study.data.patches.size) % steps == 0).all()
    # thinner than BasicUNet's multiple of 16
    assert study.data.patches.size[2] % 16 and steps[2] < 16
    patch = torch.zeros(1, 2, *study.data.patches.size)
    assert build_plain_model(study, 0).train()(patch).shape == (1, 3, *study.data.patches.size)


def test_slices_in_2d_are_resized_and_the_modality_is_asked_for_that_no_file_states(plan, phantoms):
    values, found = plan(JOBS / "harmofl_phantoms", "--data", phantoms)
    # north has 128 x 128 pixels, south 96 x 96, both as many cases
    assert values["data.transforms"] == [{"Resize": {"spatial_size": [96, 96]}}]
    assert "data.patches.size" not in values
    assert len([one for one in found["warnings"] if "--set data.modality=CT" in one]) == 1


def test_slices_of_ct_are_clipped_and_scaled(plan, phantoms, tmp_path):
    out = tmp_path / "own"
    values, found = plan(JOBS / "harmofl_phantoms", "--data", phantoms, "--set", "data.modality=CT", "--out", out)
    resize, scale = values["data.transforms"]
    assert values["data.intensity"] == "raw" and scale["ScaleIntensityRange"]["clip"]
    assert [one.name for one in load_study(study_file(out)).data.transforms] == [*resize, *scale]
    assert not any("data.modality=CT" in one for one in found["warnings"])


def test_pictures_in_colour_are_planned_as_they_are_converted(plan, site_data, blobs_job):
    values, found = plan(blobs_job, "--data", site_data)
    assert values["data.transforms"] == [{"Resize": {"spatial_size": [32, 32]}}]
    assert "data.intensity" not in values and found["sites"]["east"]["cases"] == 5


def test_a_site_without_a_contrast_is_warned_of(plan, volumes, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(volumes, data, ignore=shutil.ignore_patterns(".*"))
    path = data / "west" / "dataset.json"
    content = json.loads(path.read_text())
    for record in (one for part in ("training", "validation", "test") for one in content[part]):
        record["image"] = [record["image"][0], None]
    path.write_text(json.dumps(content))
    values, found = plan(VOLUMES_JOB, "--data", data, *PLAIN)
    assert found["warnings"] == ["site 'west' lacks the channel T2"]
    assert values["data.channel_names"] == ["T1", "T2"]


def test_a_plan_of_a_run_becomes_a_job_too(plan, silofl, volumes, tmp_path):
    _, found = plan(VOLUMES_JOB, "--data", volumes)
    (tmp_path / "plan.json").write_text(json.dumps(found | {"not_planned_with": {"south": "fewer than 5 patients"}}))
    for name, source in (("one", ("--data", volumes)), ("two", ("--plan", tmp_path / "plan.json"))):
        assert silofl("plan", VOLUMES_JOB, *source, "--out", tmp_path / name)[0] == 0
    one, two = (study_file(tmp_path / name).read_text() for name in ("one", "two"))
    assert one.replace("one", "two") == two.replace("one", "two")


def decide(key, value, reason="because"):
    return {"decisions": [{"key": key, "value": value, "reason": reason}]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sites": None}, "plan.json: sites must"),
        (decide("federation.min_sites", 1), "must decide about data, model, training only, not federation"),
        (decide("data.patchs", 1), "data.patchs must be a known key; it is not"),
        (decide("data.patches.size", [16, 16]), "data.patches.size"),
        (decide("data.transforms", [{"SaveImage": {}}]), "SaveImage must be one of"),
        ({"sites": {"a": {}}}, "plan.json: sites.a.cases must be given"),
        ({"sites": {"a": FACTS | {"spacing_mm": ["5 mm"]}}}, "plan.json: sites.a.spacing_mm"),
        # A server's plan writes no lines of its own into the study.
        ({"sites": {"a\nrounds: 7": FACTS}}, "plan.json must hold texts of one line, not 'a\\nrounds: 7'"),
        ({"warnings": ["beware\nrounds: 7"]}, "must hold texts of one line, not 'beware\\nrounds: 7'"),
        (decide("data.modality", "MR", "so\nrounds: 7"), "must hold texts of one line, not 'so\\nrounds: 7'"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(refused, tmp_path, changes, message):
    (tmp_path / "plan.json").write_text(json.dumps({"decisions": [], "warnings": [], "sites": {}} | changes))
    assert message in refused("plan", VOLUMES_JOB, "--plan", tmp_path / "plan.json", "--out", tmp_path / "own")
    assert not (tmp_path / "own").exists()


def test_what_cannot_be_is_refused(refused, volumes, phantoms, tmp_path):
    assert "--plan must be a JSON file" in refused("plan", VOLUMES_JOB, "--plan", "p.json")
    (tmp_path / "p.json").touch()
    assert "--plan must be given without --data" in refused("plan", VOLUMES_JOB, "--data", volumes, "--plan", "p.json")
    assert "--out must be a new folder" in refused("plan", VOLUMES_JOB, "--data", volumes, "--out", volumes)
    assert "p.json" in refused("plan", VOLUMES_JOB, "--plan", "p.json")
    (tmp_path / "p.json").write_text("[]")
    assert "must hold keys and values, not list" in refused("plan", VOLUMES_JOB, "--plan", "p.json")
    assert "must be a job folder" in refused("plan", tmp_path / "none", "--data", volumes)
    turned = ("--set", "data.volume_transforms=[{Orientation: {axcodes: XYZ}}]")
    assert "Orientation must have options" in refused("plan", VOLUMES_JOB, "--data", volumes, *turned)
    assert "site 'north': channel_names in dataset.json" in refused("plan", VOLUMES_JOB, "--data", phantoms)
