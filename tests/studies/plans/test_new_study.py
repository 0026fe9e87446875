import json
import shutil

import nibabel
import numpy as np
import pytest
import yaml
from PIL import Image

from silofl.core.presets import algorithm_names
from silofl.study import load_study
from silofl_desk.studies.plans.new_study import _choose_resize
from silofl_desk.studies.runs.simulation import Simulation, copy_job, settle_job, study_file

from ...conftest import SMALL_UNET, change_json
from ..conftest import JOB

JOBS = JOB.parent


@pytest.fixture
def pictures(tmp_path):
    """Return a folder with two sites of coloured pictures in two classes, of 40 x 30 and of 60 x 50 pixels."""
    for site, size in {"clinic": (40, 30), "ward": (60, 50)}.items():
        folder = tmp_path / "data" / site
        folder.mkdir(parents=True)
        records = []
        for number in range(6):
            # every picture another
            pixels = np.full((size[1], size[0], 3), 40 * number + (site == "ward"), np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
            records.append({"image": f"{number}.png", "label": number % 2, "patient": f"p{number}"})
        content = {"task": "classification", "labels": {"0": "no: never", "1": "yes"}}
        content |= {"training": records[:4], "test": records[4:]}
        (folder / "dataset.json").write_text(json.dumps(content))
    return tmp_path / "data"


@pytest.fixture
def stains(tmp_path):
    """Return a folder with two sites of pictures with masks."""
    for site in ("clinic", "ward"):
        folder = tmp_path / "stains" / site
        folder.mkdir(parents=True)
        pixels = np.random.default_rng(len(site)).integers(0, 255, (2, 32, 32), dtype=np.uint8)
        for name, array in {"a": pixels[0], "b": pixels[1], "mask": np.eye(32, dtype=np.uint8)}.items():
            Image.fromarray(array).save(folder / f"{name}.png")
        content = {"task": "segmentation", "labels": {"1": "nucleus"}}
        for part, name in {"training": "a", "test": "b"}.items():
            content[part] = [{"image": f"{name}.png", "label": "mask.png", "patient": name}]
        (folder / "dataset.json").write_text(json.dumps(content))
    return tmp_path / "stains"


@pytest.fixture
def new_study(silofl, tmp_path):
    """Write a job from one of the repository, or another; returns its study, its file and what is printed."""

    def write(job, data, name="own", *options):
        begun = ["--from", JOBS / job] if job else []
        code, out, error = silofl("new-study", data, tmp_path / name, *begun, *options)
        assert (code, error) == (0, "")
        return load_study(study_file(tmp_path / name)), study_file(tmp_path / name), out

    return write


def test_hospitals_are_named_and_the_job_goes_to_them_alone(new_study, pictures, tmp_path, refused):
    study, _, out = new_study(None, pictures, "own", "--sites", "west,north,south")
    meta = json.loads((tmp_path / "own" / "meta.json").read_text())
    assert study.federation.sites == ("north", "south", "west")
    assert meta["deploy_map"] == {"app": ["server", "north", "south", "west"]} and meta["min_clients"] == 2
    # What is said of how to go on works with the sites whose data are here.
    assert f"tune {tmp_path}/own --data {pictures} --set federation.sites=null\n" in out and "--sites 3" in out
    run = ("simulate", tmp_path / "own", "--data", pictures, "--out", tmp_path / "run")
    assert "federation.sites names north, south, west, but clinic, ward take part" in refused(*run)
    copied, _ = settle_job(tmp_path / "own", Simulation(str(pictures)), {"federation.sites": None})
    assert copied.federation.sites is None
    # Where the data of the named hospitals are all here, they are the ones that train.
    one = sorted(path.parent.name for path in pictures.glob("*/dataset.json"))[0]
    named = {"federation.sites": [one], "federation.min_sites": 1}
    assert settle_job(tmp_path / "own", Simulation(str(pictures)), named)[1].sites == (one,)
    copy_job(tmp_path / "own", tmp_path / "all", {"federation.sites": None, "federation.min_sites": 1})
    meta = json.loads((tmp_path / "all" / "meta.json").read_text())
    assert (meta["deploy_map"], meta["min_clients"]) == ({"app": ["@ALL"]}, 1)


def test_a_job_is_written_for_the_data(new_study, pictures, tmp_path):
    job, target = JOBS / "harmofl_camelyon17", tmp_path / "own"
    study, file, out = new_study(job, pictures)
    assert f"silofl tune {target} --data {pictures}\n  silofl simulate {target} --data {pictures}" in out
    assert "--sites 2\n" in out
    template = load_study(study_file(job))
    assert (study.name, study.labels, study.data.channels) == ("own", {0: "no: never", 1: "yes"}, 3)
    # the median of 30 and 50 rows is 40, midway from 32 to 48, that of 40 and 60 columns 50, next to 48
    assert study.data.transforms[0].options == {"spatial_size": [32, 48]}
    assert (study.training, study.model) == (template.training, template.model)
    assert study.algorithm == template.algorithm
    # The paper's settings are without the guard, own data are with it.
    assert study.baseline_comparison and not template.baseline_comparison
    assert json.loads((target / "meta.json").read_text())["name"] == "own"
    assert "The authors" not in file.read_text()
    files = {path.relative_to(job) for path in job.rglob("*")}
    assert {path.relative_to(target) for path in target.rglob("*")} == files


def write_template(tmp_path, job, **changes):
    """Write a variant of a job of the repository."""
    folder = tmp_path / "template"
    shutil.copytree(JOBS / job, folder)
    values = yaml.safe_load(study_file(folder).read_text()) | changes
    study_file(folder).write_text(yaml.safe_dump(values))
    return folder


def test_findings_take_the_network_of_a_job_for_classes_and_a_metric_of_rare_ones(
    new_study, refused, pictures, tmp_path
):
    for path in pictures.rglob("dataset.json"):
        content = json.loads(path.read_text())
        for number, record in enumerate(content["training"] + content["test"]):
            record["label"] = [[], [0], [0, 1]][number % 3]
        path.write_text(json.dumps(content | {"task": "multilabel", "labels": {"0": "effusion", "1": "nodule"}}))
    study, *_ = new_study("harmofl_camelyon17", pictures)
    assert (study.task, study.labels, study.metric) == ("multilabel", {0: "effusion", 1: "nodule"}, "auroc")
    template = load_study(study_file(JOBS / "harmofl_camelyon17"))
    assert (study.model, study.out_channels) == (template.model, 2)
    error = refused("new-study", pictures, tmp_path / "other", "--from", JOBS / "harmofl_nuclei")
    assert "--from must be a job for multilabel of pictures, not" in error


def test_volumes_are_oriented_and_their_slices_resized(new_study, phantoms):
    study, *_ = new_study("harmofl_nuclei", phantoms)
    assert [step.name for step in study.data.volume_transforms] == ["Orientation"]
    # 16 bits of which a scan uses a part: percentiles, where the job has the range of the type
    assert (study.data.channels, study.data.intensity) == (1, "percentiles")
    assert study.labels == {1: "organ", 2: "lesion"}


def test_the_proposal_says_what_its_size_makes_of_an_image_and_its_smallest_label(new_study, stains):
    for site, size in {"clinic": 400, "ward": 200}.items():
        mask = np.zeros((size, size), np.uint8)
        mask[:10, :20] = 1
        for name, array in {"a": np.eye(size, dtype=np.uint8), "b": mask, "mask": mask}.items():
            Image.fromarray(array).save(stains / site / f"{name}.png")
    *_, out = new_study(None, stains)
    # 200 of 400 x 400 pixels become 200 * 128 * 128 / 400 / 400.
    assert "images of up to 400 x 400 pixels become 128 x 128; the smallest label of the first masks, nucleus" in out
    assert "nucleus of 200 pixels, keeps 20.5" in " ".join(out.split())


def test_volumes_of_one_slice_are_slices(new_study, tmp_path):
    data = write_volumes(tmp_path / "volumes", (40, 36, 1), (1, 1, 5), "classification")
    study, file, out = new_study(None, data)
    assert "based on fedavg_classes." in file.read_text() and "2D slices of the volumes (each has one slice)" in out


def test_regions_of_the_data_are_those_of_the_study(new_study, stains):
    for site in ("clinic", "ward"):
        regions = {"disc: all": [1, 2], "cup": [2]}
        change_json(stains / site / "dataset.json", labels={"1": "rim", "2": "cup"}, regions=regions)
    assert new_study("harmofl_nuclei", stains)[0].regions == {"disc: all": (1, 2), "cup": (2,)}


def test_one_sites_own_data_are_enough_and_the_quorum_follows(new_study, windows, tmp_path):
    study, _, out = new_study("adafed_activity", windows / "ann")
    # A search takes all sites of a folder.
    assert "silofl tune" not in out
    assert f"silofl simulate {tmp_path / 'own'} --data {windows} --sites ann" in out
    assert study.federation.min_sites == 1 and study.labels == {0: "slow", 1: "fast"}
    settle_job(tmp_path / "own", Simulation(str(windows), ("ann",), pretrained="f.pt"), {})


OTHER = "--from must be a job for classification of pictures, not .*leave it out, or take fedavg_classes"


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ("harmofl_nuclei", OTHER),
        ("adafed_activity", OTHER),
        ("nowhere", "must be a job folder with meta.json"),
    ],
)
def test_a_job_of_another_kind_is_refused(refused, pictures, windows, tmp_path, job, message):
    error = refused("new-study", windows, tmp_path / "own", "--from", JOBS / "adafed_mednist")
    assert "--from must be a job for classification of windows" in error and "take adafed_activity" in error
    error = refused("new-study", pictures, tmp_path / "own", "--from", JOBS / job)
    for part in message.split(".*"):
        assert part in error
    assert not (tmp_path / "own").exists()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("data", ["--from", JOBS / "adafed_mednist"], "already exists. Choose another name"),
        ("my study", ["--from", JOBS / "adafed_mednist"], "name must be letters"),
        ("own", ["--algorithm", "fedadg"], "(did you mean 'fedavg'?)"),
    ],
)
def test_a_place_a_name_or_an_algorithm_that_cannot_be_is_refused(refused, pictures, tmp_path, name, options, message):
    error = refused("new-study", pictures, tmp_path / name, *options)
    assert message in error and (tmp_path / name).exists() == (name == "data")


@pytest.mark.parametrize(
    ("job", "sizes", "wanted"),
    [
        # of one size, and large enough
        ("adafed_mednist", [(28, 28), (28, 28)], None),
        # AlexNet takes no 28 pixels: the job's own size
        ("adafed_covid", [(28, 28), (28, 28)], [224, 224]),
        # the medians 100 and 90 to the nearest multiples of 16
        ("adafed_mednist", [(100, 80), (100, 100)], [96, 96]),
        # no side longer than 128
        ("adafed_mednist", [(512, 300), (512, 300)], [128, 128]),
        # turned by 90 degrees in training: square
        ("harmofl_nuclei", [(64, 128), (64, 128)], [128, 128]),
    ],
)
def test_a_size_is_chosen_where_images_need_one(job, sizes, wanted):
    transforms = _choose_resize(np.array(sizes), load_study(study_file(JOBS / job)))
    assert transforms == ([] if wanted is None else [{"Resize": {"spatial_size": wanted}}])


def test_the_models_of_the_other_job_stay_there(new_study, windows, tmp_path):
    model = {"name": "activity_cnn", "weights": "w.safetensors", "weights_sha256": "0" * 64}
    job = write_template(tmp_path, "adafed_activity", algorithm={"name": "local"}, model=model)
    for name in ("pretrained.pt", "w.safetensors"):
        study_file(job).with_name(name).write_bytes(b"another network's")
    assert new_study(job, windows)[0].model.weights is None
    assert {path.suffix for path in (tmp_path / "own").rglob("*.*")} == {".json", ".yaml"}


def test_without_a_job_the_one_that_suits_the_data_is_taken_and_said(new_study, pictures, stains, windows, phantoms):
    found = {}
    for name, data in {"classes": pictures, "masks": stains, "windows": windows, "slices": phantoms}.items():
        study, file, out = new_study(None, data, name)
        assert (study.algorithm.name, study.model.normalization, study.recipe.needs_pretrained) == (
            *("fedavg", "group"),
            False,
        )
        found[name] = file.read_text().splitlines()[0].partition("based on ")[2].partition(".")[0], out.splitlines()[0]
    assert found == {
        "classes": ("fedavg_classes", "classes trains pictures: fedavg, GroupNorm"),
        "masks": ("fedavg_masks", "masks trains pictures: fedavg, GroupNorm"),
        "windows": ("adafed_activity", "windows trains windows of time series: fedavg, GroupNorm"),
        "slices": (
            "fedavg_masks",
            "slices trains 2D slices of the volumes (one has 8 of them, and 3D needs 16): fedavg, GroupNorm",
        ),
    }


def write_volumes(folder, shape, spacing, task, count=4):
    """Write two sites of volumes with masks, or with two classes."""
    for site in ("clinic", "ward"):
        (folder / site).mkdir(parents=True)
        content = {"task": task, "training": [], "test": []}
        content["labels"] = {"1": "box"} if task == "segmentation" else {"0": "no", "1": "yes"}
        for number in range(count):
            name, mask = f"{site}{number}", np.zeros(shape, np.uint8)
            mask[4:8, 4:8, 4:8] = 1
            noise = np.random.default_rng(number + 10 * len(site)).integers(0, 900, shape, dtype=np.int16)
            for file, array in ((f"{name}.nii.gz", noise), (f"{name}_mask.nii.gz", mask)):
                nibabel.save(nibabel.Nifti1Image(array, np.diag([*spacing, 1.0])), folder / site / file)
            label = f"{name}_mask.nii.gz" if task == "segmentation" else number % 2
            part = "test" if number == count - 1 else "training"
            content[part].append({"image": f"{name}.nii.gz", "label": label, "patient": name})
        (folder / site / "dataset.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    ("task", "spacing", "job", "said"),
    [
        ("segmentation", (2, 2, 5), "fedavg_masks_3d", "3D volumes (their voxels are at most 3 times as long as"),
        ("segmentation", (1, 1, 5), "fedavg_masks", "2D slices of the volumes (their voxels of 1 x 1 x 5 mm are more"),
        ("classification", (1, 1, 5), "fedavg_classes_3d", "3D volumes (a class is the whole volume's)"),
    ],
)
def test_volumes_are_cut_into_slices_where_these_are_thick(new_study, silofl, tmp_path, task, spacing, job, said):
    data = write_volumes(tmp_path / "volumes", (40, 36, 24), spacing, task)
    study, file, out = new_study(None, data)
    assert f"based on {job}." in file.read_text() and f"own trains {said}" in out
    assert study.data.dimensions == (2 if job == "fedavg_masks" else 3)
    changes = ["rounds=1", "device=cpu", "baseline_comparison=false", "training.local_epochs=1"]
    changes += [f"model={json.dumps(SMALL_UNET)}", "data.patches.per_volume=1"] * (task == "segmentation")
    settings = [word for change in changes for word in ("--set", change)]
    # Other tests train slices.
    run = ("simulate", "own", "--data", data, "--out", "run", "--in-process", *settings)
    assert study.data.dimensions == 2 or silofl(*run)[0] == 0


def test_a_survey_gives_spacing_patch_and_window_as_numbers(new_study, silofl, tmp_path):
    data = write_volumes(tmp_path / "volumes", (40, 36, 24), (2, 2, 5), "segmentation")
    for path in data.rglob("dataset.json"):
        records = json.loads(path.read_text())
        for record in records["training"] + records["test"]:
            record["image"] = [record["image"]]
        change_json(path, channel_names=["CT"], training=records["training"], test=records["test"])
    code, out, _ = silofl("survey", data, "--json")
    (tmp_path / "survey.json").write_text(out)
    study, *_ = new_study(None, data, "own", "--survey", tmp_path / "survey.json")
    assert code == 0 and study.data.volume_transforms[1].options == {"pixdim": [2, 2, 5]}
    # 40 x 36 x 24 voxels, in multiples of 16.
    assert study.data.patches.size == (48, 48, 32) and study.data.intensity == "raw"
    (scale,) = study.data.transforms
    # The labelled voxels are even from 0 to 900.
    assert scale.name == "ScaleIntensityRange"
    assert (scale.options["a_min"], scale.options["a_max"]) == pytest.approx((0, 900), abs=16)


WITH_CLASSES = [("classes", name) for name in algorithm_names()]


@pytest.mark.parametrize(("task", "name"), [*WITH_CLASSES, ("masks", "adafed"), ("masks", "moon")])
def test_any_algorithm_may_take_the_jobs_place_with_what_it_needs(new_study, pictures, stains, tmp_path, name, task):
    data = stains if task == "masks" else pictures
    study, *_ = new_study(None, data, "own", "--algorithm", name)
    assert (study.algorithm.name, study.algorithm.preset) == (name, "recommended")
    needs_batchnorm = name in ("adafed", "fedbn", "harmofl")
    assert study.model.normalization == ("batch" if needs_batchnorm else "group") and not study.cautions
    settle_job(tmp_path / "own", Simulation(str(data), pretrained="f.pt"), {})


@pytest.mark.parametrize(("rare", "is_balanced"), [(5, True), (8, False)])
def test_a_class_with_most_cases_does_not_decide_alone(new_study, pictures, rare, is_balanced):
    # 20 training cases of both sites, the first `rare` ones of class 1
    number = iter(range(20))
    for path in sorted(pictures.rglob("dataset.json")):
        content = json.loads(path.read_text())
        training = [content["training"][0] | {"label": int(next(number) < rare)} for _ in range(10)]
        path.write_text(json.dumps(content | {"training": training}))
    study, _, out = new_study(None, pictures)
    wanted = ("balanced_accuracy", "balanced") if is_balanced else ("accuracy", "shuffled")
    assert (study.metric, study.training.sampler) == wanted
    said = "75% of the training cases are no: never: metric balanced_accuracy, training.sampler balanced"
    assert (said in out) == is_balanced


def add_validation(data):
    """Give each site's last training case to its validation."""
    for path in data.rglob("dataset.json"):
        *training, last = json.loads(path.read_text())["training"]
        change_json(path, training=training, validation=[last])


def test_a_new_study_trains_until_nothing_rises(new_study, pictures):
    # No validation could end it.
    study, *_ = new_study(None, pictures, "fixed")
    assert (study.rounds, study.federation.patience) == (25, None)
    add_validation(pictures)
    study, _, out = new_study(None, pictures)
    assert (study.rounds, study.federation.patience, study.training.schedule) == (200, 10, "constant")
    assert "no verdict" not in out


PRIVATE = {"baseline_comparison": False, "privacy": {"dp_sgd": {"noise": 1.0, "clip": 1.0}}}


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        # The rate of each round follows from the number of rounds.
        ({"training": {"loss": "cross_entropy", "schedule": "poly"}}, ()),
        # Each round spends epsilon.
        (PRIVATE, ()),
        # Half of the rounds come before the mixing.
        ({}, ("--algorithm", "adafed")),
    ],
    ids=["falling rate", "privacy", "half"],
)
def test_a_study_whose_rounds_depend_on_their_number_keeps_them(new_study, pictures, tmp_path, changes, options):
    add_validation(pictures)
    study, *_ = new_study(write_template(tmp_path, "fedavg_classes", **changes), pictures, "own", *options)
    assert (study.rounds, study.federation.patience) == (25, None)
