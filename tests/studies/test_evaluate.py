import csv
import json
import shutil
from dataclasses import replace
from itertools import count

import nibabel
import numpy as np
import pytest
import torch
from monai.metrics import compute_hausdorff_distance
from PIL import Image
from scipy import ndimage
from sklearn.metrics import average_precision_score, roc_auc_score

from silofl.base.errors import ConfigError, ExitCode
from silofl.base.files import save_tensors
from silofl.base.schema import dump_record, read_record
from silofl.base.settings import dump_yaml, parse
from silofl.cli import main
from silofl.core.intervals import Estimate
from silofl.core.operating_point import OperatingPoint
from silofl.core.roc import compare_aurocs
from silofl.data.counts import SiteCounts
from silofl.data.domain import Domain, Range
from silofl.data.learnt import record_learnt
from silofl.data.site_data import load_site_data
from silofl.inference import SuperModel
from silofl.inference.contents import Contents
from silofl.inference.directory import plain_study, write_model_folder
from silofl.inference.evaluation import Evaluation
from silofl.models import build_model
from silofl.models.selector import build_selector
from silofl.study import Study
from silofl.study.sections import DoNotUseSettings
from silofl.training.metrics import group_positions
from silofl_desk.inference.export import export_bundle
from silofl_desk.phantoms.phantoms import UNSEEN_SITE
from silofl_desk.studies.leave_out import measure_models
from silofl_hospital.report.evaluation_page import judge_release

from ..conftest import SMALL_UNET, change_json

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("undrawn")]
SHAPE, CPU = (1, 32, 32), torch.device("cpu")
FORM = Domain(kinds=("volumes",))
CROP = {"CenterSpatialCrop": {"roi_size": [32, 32]}}
SHARES = {"dice", "accuracy", "balanced_accuracy", "auroc", "recall", "specificity"}
FINE = {
    "volume_transforms": [{"Spacing": {"pixdim": [0.5, 0.5, 1]}}, {"CenterSpatialCrop": {"roi_size": [64, 64, -1]}}]
}


def answering(study, shape, *biases):
    """Return the state of a network whose answer is the largest bias, whatever the image."""
    model = build_model(study, shape, seed=0)
    layers = torch.nn.Conv2d | torch.nn.ConvTranspose2d | torch.nn.Linear
    last = [m for m in model.modules() if isinstance(m, layers)][-1]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(torch.tensor(biases))
    return model.state_dict()


def make_study(**more):
    settings = {"name": "organs", "task": "segmentation", "labels": {1: "organ", 2: "lesion"}, "rounds": 1}
    data = {
        "volume_transforms": [{"Orientation": {"axcodes": "LPS"}}],
        "transforms": [{"Resize": {"spatial_size": [32, 32]}}],
    } | more
    model = SMALL_UNET | {"normalization": "instance"}
    rest = {"device": "cpu", "data": data, "model": model, "algorithm": {"name": "fedavg"}}
    return parse(Study, settings | rest, "study.yaml")


@pytest.fixture(scope="module")
def contents():
    """A model that answers organ everywhere."""
    study = make_study()
    return Contents(study, SHAPE, {"global": answering(study, SHAPE, 0.0, 9.0, 0.0)}, "only", domain=FORM)


@pytest.fixture
def evaluate(tmp_path, capsys):
    """Evaluate a model, or a folder of one, on data; return exit code, record, what is said and the results' folder."""
    numbers = count()

    def give(model, data, *options):
        out, folder = tmp_path / f"out{next(numbers)}", model
        if isinstance(model, Contents):
            folder = tmp_path / "model"
            write_model_folder(folder, model)
        code = main(["evaluate", str(folder), str(data), "--out", str(out), *map(str, options)])
        printed = capsys.readouterr()
        path = out / "evaluation.json"
        record = read_record(Evaluation, json.loads(path.read_text()), path.name) if path.is_file() else None
        return code, record, " ".join((printed.out + printed.err).split()), out

    return give


@pytest.fixture
def clinic(phantoms, tmp_path):
    """A copy of a hospital's data, to be changed."""
    return shutil.copytree(phantoms / UNSEEN_SITE, tmp_path / "clinic", ignore=shutil.ignore_patterns(".silofl*"))


def read_cases(out):
    return list(csv.DictReader((out / "cases.csv").open()))


def read_truth(folder, case):
    """Return what was drawn on a test case's file."""
    (record,) = (one for one in json.loads((folder / "dataset.json").read_text())["test"] if case in one["image"])
    return np.asarray(nibabel.load(folder / record["label"]).dataobj)


def load(folder, study, tmp_path):
    return load_site_data(folder, study, tmp_path / "cache", has_progress=False)


def test_models_that_see_patches_of_volumes_are_evaluated(evaluate, phantoms):
    shape = (1, 16, 16, 16)
    study = make_study(dimensions=3, patches={"size": shape[1:]}, transforms=[])
    study = study.model_copy(update={"model": study.model.model_copy(update={"normalization": "batch"})})
    model = build_model(study, shape, seed=0).state_dict()
    contents = Contents(study, shape, {"global": model}, "only", domain=FORM)
    code, record, printed, _ = evaluate(contents, phantoms / UNSEEN_SITE)
    assert code == ExitCode.COMPLETE and record.num_cases == 6, printed


def test_the_value_is_that_of_a_left_out_sites_test_and_cases_stay_in_their_table(
    evaluate, contents, phantoms, tmp_path
):
    code, record, printed, out = evaluate(contents, phantoms / UNSEEN_SITE)
    data = load(phantoms / UNSEEN_SITE, contents.study, tmp_path)
    unseen = measure_models(SuperModel(contents, CPU), (data.training, data.validation, data.test))
    assert (code, record.num_cases, record.unit, record.num_units) == (ExitCode.COMPLETE, 6, "patient", 6)
    # That is on the prepared grid.
    assert record.value.value == pytest.approx(unseen["models"]["global"], rel=0.01)
    with pytest.raises(ConfigError, match="scores must have 'dice' of all cases"):
        replace(record, scores={"organ": record.scores["organ"]})
    assert record.parts == ("training", "validation", "test")
    low, high = record.value.interval
    assert f"dice: {record.value.value:.3f} ({low:.3f} to {high:.3f})" in printed
    organ, lesion = record.scores["organ"], record.scores["lesion"]
    assert organ["lesion_sensitivity"].value == 1 and lesion["lesion_sensitivity"].value == 0
    # every voxel is organ
    assert record.size_unit == "ml" and organ["size_error"].value > 0
    page = (out / "evaluation.html").read_text()
    assert all(sentence in page for sentence in ("Worst cases", "no medical device", "organ"))
    assert "no medical device" in printed
    rows = read_cases(out)
    parts = {case: name for name in record.parts for case in getattr(data, name).cases}
    assert {row["case"]: row["part"] for row in rows} == parts
    assert not any(case in (out / "evaluation.json").read_text() for case in parts)
    for row in (row for row in rows if row["part"] == "test"):
        share = np.mean(read_truth(phantoms / UNSEEN_SITE, row["case"]) == 1)
        # 2 |T| / (N + |T|)
        assert float(row["organ Dice"]) == pytest.approx(2 * share / (1 + share))
        assert float(row["organ true ml"]) == pytest.approx(share * float(row["organ predicted ml"]))


@pytest.mark.parametrize("data", [{}, {"transforms": [CROP]}, FINE])
def test_label_maps_are_measured_as_predict_writes_them_on_what_was_drawn(evaluate, tmp_path, data):
    """Lesions of single voxels are gone on a coarser grid; here none is."""
    rng, folder, study = np.random.default_rng(0), tmp_path / "clinic", make_study(**data)
    folder.mkdir()
    affine, cases, drawn = np.diag([-0.5, -0.5, 3.0, 1.0]), [], {}
    for name in "abc":
        labels = np.zeros((64, 64, 4), np.uint8)
        labels[8:40, 8:40], labels[10:40:6, 10:40:6, 1:3] = 1, 2
        for end, values in (("", rng.integers(0, 255, labels.shape, np.uint8)), ("-label", labels)):
            nibabel.save(nibabel.Nifti1Image(values, affine), folder / f"{name}{end}.nii.gz")
        cases.append({"image": f"{name}.nii.gz", "label": f"{name}-label.nii.gz", "patient": name, "case": name})
        drawn[name] = labels
    content = {"task": "segmentation", "labels": {"1": "organ", "2": "lesion"}, "test": cases}
    (folder / "dataset.json").write_text(json.dumps(content))
    model = Contents(study, SHAPE, {"global": build_model(study, SHAPE, 3).state_dict()}, "only", domain=FORM)
    _, record, _, out = evaluate(model, folder, "--part", "test")
    rows, dice = {row["case"]: row for row in read_cases(out)}, []
    for name, truth in drawn.items():
        said = SuperModel(model, CPU).predict(folder / f"{name}.nii.gz").label_map
        for number, label in ((1, "organ"), (2, "lesion")):
            one, other = said == number, truth == number
            overlap = 2 * (one & other).sum() / (one.sum() + other.sum())
            assert float(rows[name][f"{label} Dice"]) == pytest.approx(overlap)
            assert float(rows[name][f"{label} predicted ml"]) == pytest.approx(one.sum() * 0.75 / 1000)
            assert float(rows[name][f"{label} true ml"]) == pytest.approx(other.sum() * 0.75 / 1000)
            numbers, count = ndimage.label(other, np.ones((3, 3, 3)))
            found = {*numbers[one & other].tolist()}
            assert [int(rows[name][f"{label} {key}"]) for key in ("lesions", "lesions found")] == [count, len(found)]
            if one.any():
                pair = [torch.from_numpy(mask[None, None]) for mask in (one, other)]
                hd95 = compute_hausdorff_distance(
                    *pair, include_background=True, percentile=95, spacing=[0.5, 0.5, 3.0]
                )
                assert float(rows[name][f"{label} HD95 mm"]) == pytest.approx(float(hd95), abs=1e-5)
            dice.append((label, overlap))
    assert record.lesions["lesion"] == 3 * 25
    for label in ("organ", "lesion"):
        assert record.scores[label]["dice"].value == pytest.approx(
            np.mean([one for name, one in dice if name == label])
        )


def test_one_part_alone_is_evaluated_and_decoded_images_are_kept_where_asked(evaluate, contents, phantoms, tmp_path):
    options = ("--part", "test", "--cache", tmp_path / "kept", "--device", "cpu", "--json")
    code, record, printed, out = evaluate(contents, phantoms / UNSEEN_SITE, *options)
    data = load(phantoms / UNSEEN_SITE, contents.study, tmp_path)
    assert record.parts == ("test",) and record.num_cases == len({*data.test.cases})
    assert '"parts": [ "test" ]' in printed and code == ExitCode.COMPLETE and any((tmp_path / "kept").iterdir())
    # Results are never overwritten.
    code, _, printed, _ = evaluate(contents, phantoms / UNSEEN_SITE, "--out", out)
    assert code == ExitCode.BAD_INPUT and "--out must be a new folder" in printed
    inside = "--out", tmp_path / "new", "--cache", tmp_path / "new" / "kept"
    code, _, printed, _ = evaluate(contents, phantoms / UNSEEN_SITE, *inside)
    assert code == ExitCode.BAD_INPUT and "--cache must be a folder outside of --out" in printed


def test_a_hospital_needs_no_training_cases_but_a_labelled_one(evaluate, contents, clinic):
    change_json(clinic / "dataset.json", training=[], validation=[])
    code, record, *_ = evaluate(contents, clinic)
    assert (code, record.num_cases, record.parts) == (ExitCode.COMPLETE, 3, ("test",))
    change_json(clinic / "dataset.json", test=[])
    for part in ("all", "test"):
        code, record, printed, _ = evaluate(contents, clinic, "--part", part)
        assert code == ExitCode.BAD_INPUT and record is None and "must have at least one case" in printed


def test_images_of_another_kind_are_refused_as_predict_refuses_them(evaluate, contents, phantoms):
    pictures = replace(contents, domain=Domain(kinds=("pictures",)))
    code, record, printed, out = evaluate(pictures, phantoms / UNSEEN_SITE)
    assert code == ExitCode.BAD_INPUT and record is None and not out.exists()
    assert "must be like the training images, which are pictures, not volumes" in printed


def test_a_case_that_predict_refuses_is_left_out_and_named_and_what_it_warns_of_is_counted(evaluate, contents, clinic):
    first, second, *_ = json.loads((clinic / "dataset.json").read_text())["test"]
    for file in (clinic / first["image"], clinic / first["label"]):
        image = nibabel.load(file)
        # As where a header counts in micrometres.
        nibabel.save(nibabel.Nifti1Image(np.asarray(image.dataobj), image.affine * 100), file)
    for file in (clinic / second["image"], clinic / second["label"]):
        image = nibabel.load(file)
        bare = nibabel.Nifti1Image(np.asarray(image.dataobj), None, image.header)
        bare.set_sform(None, 0)
        bare.set_qform(None, 0)
        nibabel.save(bare, file)
    code, record, printed, out = evaluate(contents, clinic)
    assert (code, record.num_cases, record.num_refused) == (ExitCode.INCOMPLETE, 5, 1)
    assert "1 case refused" in printed and "must have voxels of at most 50 mm" in printed
    (row,) = (row for row in read_cases(out) if row["refused"])
    assert "must have voxels of at most 50 mm" in row["refused"]
    assert row["case"] in (out / "evaluation.html").read_text()
    said = "the file does not state how its axes lie in the body"
    assert [number for text, number in record.warnings.items() if text.startswith(said)] == [1] and said in printed


def test_a_case_with_a_contrast_that_shows_nothing_is_refused_as_predict_refuses_it(evaluate, tmp_path):
    names, shape, folder = ["T1", "T2"], (2, 32, 32), tmp_path / "clinic"
    study, rng = make_study(channels=2, channel_names=names, intensity="percentiles"), np.random.default_rng(0)
    folder.mkdir()

    def write(name, array):
        nibabel.save(nibabel.Nifti1Image(array.astype(np.float32), np.eye(4)), folder / f"{name}.nii.gz")
        return f"{name}.nii.gz"

    scans = {name: write(name, rng.random((32, 32, 3))) for name in ("full-T1", "full-T2", "half-T1", "odd-T1")}
    scans["odd-T2"] = write("odd-T2", np.full((32, 32, 3), 7.0))
    cases = [
        {"image": [scans.get(f"{one}-{name}") for name in names], "case": one, "patient": one}
        | {"label": write(f"{one}-label", np.eye(32)[..., None].repeat(3, axis=2))}
        for one in ("full", "half", "odd")
    ]
    content = {"task": "segmentation", "labels": {"1": "organ", "2": "lesion"}, "channel_names": names, "test": cases}
    (folder / "dataset.json").write_text(json.dumps(content))
    both = Contents(study, shape, {"global": answering(study, shape, 0.0, 9.0, 0.0)}, "only", domain=FORM)
    _, record, printed, _ = evaluate(both, folder, "--part", "test")
    assert (record.num_cases, record.num_refused) == (2, 1) and "contrast T2 is missing" in printed
    assert "case 'odd' must show something, not one intensity alone in T2" in printed


def test_what_predict_warns_of_is_counted_and_a_learnt_data_set_is_no_test(evaluate, contents, phantoms, tmp_path):
    data = load(phantoms / UNSEEN_SITE, contents.study, tmp_path)
    test = {"value": 0.4, "labels": {"1": 0.8, "2": 0.01}, "num_cases": 3, "num_patients": 3, "num_excluded": 0}
    facts = {"data": {"coast": dump_record(SiteCounts.of(data))}, "test": {"north": test}}
    odd = replace(contents, domain=Domain(kinds=("volumes",), intensities=(Range("mean", 5, 6),)), facts=facts)
    _, record, printed, _ = evaluate(odd, phantoms / UNSEEN_SITE)
    # At a hospital that trained, three cases are like its own training images.
    unlearnt = "the model cannot recognise lesion (test Dice 0.01 at the best site)"
    assert record.warnings == {unlearnt: 6, "its intensities are unlike the training images'": 3}
    assert "Dice in test: organ 0.80, lesion 0.01" in printed and record.quality in printed
    assert f"warning: {unlearnt}: 6 of 6 cases" in " ".join(printed.split())
    # Before the first number.
    assert 0 <= printed.find("learnt from this very dataset.json") < printed.find("Dice")
    *_, printed, _ = evaluate(odd, phantoms / UNSEEN_SITE, "--part", "test")
    assert "learnt from this very dataset.json" not in printed


def test_a_model_that_is_compared_with_must_not_have_learnt_the_data_either(evaluate, contents, phantoms, tmp_path):
    """As a hospital's own model, beside one of others."""
    data = load(phantoms / UNSEEN_SITE, contents.study, tmp_path)
    own = replace(contents, facts={"data": {"coast": dump_record(SiteCounts.of(data))}})
    _, _, printed, _ = evaluate(contents, phantoms / UNSEEN_SITE, *write_other(tmp_path, own))
    assert "the model of --against learnt from this very dataset.json" in printed
    assert "the model learnt from" not in printed.replace("whether the model learnt from these images could not", "")


def test_a_model_whose_images_nobody_can_compare_is_not_passed_in_silence(evaluate, contents, phantoms, tmp_path):
    said = "whether the model learnt from these images could not be checked: "
    for part in ("all", "test"):
        *_, printed, _ = evaluate(contents, phantoms / UNSEEN_SITE, "--part", part)
        assert f"{said}it does not name its run" in printed
    here = SiteCounts.of(load(phantoms / UNSEEN_SITE, contents.study, tmp_path))
    of_others = replace(contents, facts={"run": "organs-1", "data": {"x": dump_record(replace(here, digest="0"))}})
    *_, printed, _ = evaluate(of_others, phantoms / UNSEEN_SITE)
    assert f"{said}no record of run organs-1 is here; where this hospital took part in it, name its site" in printed
    # The test cases of the very data of the training are kept apart from those that it learnt from.
    own = replace(contents, facts={"run": "organs-1", "data": {"x": dump_record(here)}})
    *_, printed, _ = evaluate(own, phantoms / UNSEEN_SITE, "--part", "test")
    assert "could not be checked" not in printed


def test_a_hospital_knows_what_its_run_learnt_from_wherever_the_model_lies(
    evaluate, silofl, contents, phantoms, clinic, tmp_path
):
    state, settings = tmp_path / "state[1]", tmp_path / "kit" / "local" / "site.yaml"
    settings.parent.mkdir(parents=True)
    settings.write_text(dump_yaml({"data": str(clinic), "state_dir": f"{state}/{{site}}/{{study}}"}))
    learnt = replace(contents, facts={"run": "organs-1"})
    data = load(phantoms / UNSEEN_SITE, contents.study, tmp_path)
    record_learnt(state / "coast" / contents.study.name / "organs-1", data)
    code, _, printed, _ = evaluate(learnt, clinic, "--part", "test", "--site-config", settings)
    assert code == 0 and "learnt from" not in printed
    training = json.loads((clinic / "dataset.json").read_text())["training"]
    renamed = [one | {"patient": f"x{i}", "case": f"x{i}"} for i, one in enumerate(training)]
    change_json(clinic / "dataset.json", training=[], test=renamed)
    command = ["evaluate", tmp_path / "model", clinic, "--part", "test", "--site-config", settings]
    code, _, error = silofl(*command, "--out", tmp_path / "refused")
    assert code == 2 and "must hold no image that the model learnt from, not that of case 'x0'; take them" in error
    # The record is the site's, which forgets it with the study.
    forget = ["site", "forget", contents.study.name, "--site", "coast", "--site-config", settings, "--yes"]
    assert silofl(*forget)[0] == 0 and not [*tmp_path.rglob("learnt_from.json")]
    code, _, printed, _ = evaluate(learnt, clinic, "--part", "test", "--site-config", settings)
    assert code == 0 and "could not be checked: no record of run organs-1 is here" in printed


def test_training_patients_who_are_renamed_as_test_are_known_where_the_run_left_its_model(
    evaluate, silofl, contents, phantoms, clinic, tmp_path
):
    content = json.loads((clinic / "dataset.json").read_text())
    learnt = replace(contents, facts={"run": "organs-1"})
    record_learnt(tmp_path / "sites" / "coast" / "organs-1", load(phantoms / UNSEEN_SITE, contents.study, tmp_path))
    code, _, printed, _ = evaluate(learnt, clinic, "--part", "test")
    assert code == 0 and "learnt from" not in printed
    renamed = [one | {"patient": f"x{i}", "case": f"x{i}"} for i, one in enumerate(content["training"])]
    change_json(clinic / "dataset.json", training=[], test=renamed)
    command = ["evaluate", tmp_path / "model", clinic, "--out", tmp_path / "refused"]
    code, _, error = silofl(*command, "--part", "test")
    assert code == 2 and "must hold no image that the model learnt from, not that of case 'x0'; take them" in error
    _, record, printed, _ = evaluate(learnt, clinic)
    assert f"the model learnt from {record.num_cases} of these cases: they are no test of it" in printed
    # A model of another run, or of nobody knows which, is no model of these.
    code, _, printed, _ = evaluate(replace(contents, facts={"run": "organs-2"}), clinic, "--part", "test")
    assert code == 0 and "could not be checked: no record of run organs-2" in printed


def make_classes():
    settings = {"name": "moves", "task": "classification", "labels": {0: "slow", 1: "fast"}, "metric": "accuracy"}
    settings |= {"data": {"channels": 3, "intensity": "raw", "split_unit": "recordings"}, "rounds": 1, "device": "cpu"}
    settings |= {"model": {"name": "activity_cnn"}, "training": {"loss": "cross_entropy"}}
    return parse(Study, settings | {"algorithm": {"name": "fedavg"}}, "study.yaml")


def classify(state=None, **more):
    """Return a model that calls every window slow, with probability 1 / (1 + 1 / e) = 0.731, or has other weights."""
    study, shape = make_classes(), (3, 1, 64)
    state = answering(study, shape, 1.0, 0.0) if state is None else state
    return Contents(study, shape, {"global": state}, "only", domain=Domain(kinds=("windows",)), **more)


def test_a_classification_has_the_numbers_of_its_classes(evaluate, windows):
    code, record, printed, out = evaluate(classify(), windows / "eva", "--specificity", "0.8")
    # 10 slow and 6 fast ones
    wanted = {"slow": {"slow": 10, "fast": 0}, "fast": {"slow": 6, "fast": 0}}
    assert code == ExitCode.COMPLETE and record.confusion == wanted
    assert record.scores[""]["accuracy"].value == 10 / 16 and record.scores[""]["balanced_accuracy"].value == 0.5
    assert record.scores["fast"]["auroc"].value == 0.5 and record.specificity == 0.8
    assert record.scores[""]["ece"].value == pytest.approx(0.731059 - 10 / 16, abs=1e-6)
    assert (record.unit, record.num_units) == ("recording", 16) and "intervals are over recordings" in printed
    page = (out / "evaluation.html").read_text()
    assert "sensitivity at 0.8 specificity" in page
    opening = page[: page.index("By class")]
    never = "o case of fast is recognised: recall 0 in 6 cases"
    assert all(words in opening for words in (f"n{never}", "Worst case: ", "slow 0.73", "ROC curves; AUROC fast 0.500"))
    assert f"warning: n{never}" in printed
    assert {row["true class"] for row in read_cases(out)} == {"slow", "fast"}


def test_a_classification_is_read_as_the_model_says_and_where_that_does_not_help_is_said(evaluate, windows):
    for temperature, threshold, helps in ((2.0, 0.2, True), (0.5, 0.3, False)):
        read = classify(calling=OperatingPoint(temperature, {1: threshold}))
        _, record, printed, out = evaluate(read, windows / "eva")
        # all are fast with probability 1 / (1 + e) = 0.269
        answer = "fast" if threshold < 0.26 else "slow"
        nobody = {"slow": 0, "fast": 0}
        assert record.confusion == {"slow": nobody | {answer: 10}, "fast": nobody | {answer: 6}}
        shown = 1 / (1 + (1 / threshold - 1) ** (1 / temperature))
        one, is_fast = record.scores["fast"], float(answer == "fast")
        assert (record.called_from["fast"], one["recall"].value) == (pytest.approx(shown), is_fast)
        assert one["specificity"].value == 1 - is_fast
        # the most probable is slow, as 10 of 16 are, whatever is called
        sure = 1 / (1 + np.exp(-1 / temperature))
        assert record.scores[""]["ece"].value == pytest.approx(abs(sure - 10 / 16), abs=1e-6)
        assert record.calibration.error_before.value == pytest.approx(0.731059 - 10 / 16, abs=1e-6)
        assert ("Here it does not help." in printed) == (not helps) and f"temperature, {temperature:.2f}" in printed
        assert {row["answer"] for row in read_cases(out)} == {answer}
        assert float(read_cases(out)[0]["probability of slow"]) == pytest.approx(sure, abs=1e-6)
        assert "threshold" in (out / "evaluation.html").read_text()


@pytest.fixture
def pictures(tmp_path):
    """Write pictures of two classes, and return their folder."""
    rng, folder, cases = np.random.default_rng(1), tmp_path / "pictures", []
    folder.mkdir()
    for number in range(24):
        pixels = rng.integers(0, 130, (32, 32)) + 50 * (number % 3)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"c{number}.png")
        one = {"image": f"c{number}.png", "label": number % 2, "patient": f"p{number}", "case": f"c{number}"}
        cases.append(one)
    labels = {"0": "slow", "1": "fast"}
    (folder / "dataset.json").write_text(json.dumps({"task": "classification", "labels": labels, "test": cases}))
    return folder


def choose_by_picture(folder):
    """Return a super model whose selector has one of two models answer each picture, with a temperature of its own."""
    settings = {"data": {"intensity": "dtype"}, "model": {"name": "lenet5"}, "algorithm": {"name": "fedavg"}}
    settings |= {"name": "x", "task": "classification", "labels": {0: "slow", 1: "fast"}, "metric": "accuracy"}
    settings |= {"rounds": 1, "device": "cpu", "training": {"loss": "cross_entropy"}}
    study, shape = parse(Study, settings, "study.yaml"), (1, 32, 32)
    models = {
        name: build_model(study, shape, seed).state_dict() for seed, name in enumerate(("east", "west", "global"))
    }
    selector = build_selector(study, 2, 1)
    images = np.stack([np.asarray(Image.open(path), np.float32)[None] / 255 for path in folder.glob("*.png")])
    with torch.no_grad():
        logits = selector.eval()(torch.from_numpy(images))
        # So that each answers half of the pictures.
        selector.network.head.bias[1] -= (logits[:, 1] - logits[:, 0]).median()
    calling = OperatingPoint(1.5, {1: 0.5})
    more = {"domain": Domain(kinds=("pictures",)), "calling": calling}
    return Contents(study, shape, models, "selector", selector.state_dict(), ("east", "west"), **more)


def test_all_numbers_of_a_classification_are_of_the_probabilities_in_the_table_of_cases(evaluate, pictures):
    model = choose_by_picture(pictures)
    _, record, printed, out = evaluate(model, pictures, "--part", "test", "--specificity", "0.6")
    rows = read_cases(out)
    assert {row["answered by"] for row in rows} == {"east", "west"}
    is_fast, said = (np.array([row[key] == "fast" for row in rows]) for key in ("true class", "answer"))
    shown = np.array([float(row["probability of fast"]) for row in rows])
    one, confidence = record.scores["fast"], np.maximum(shown, 1 - shown)
    assert one["auroc"].value == record.scores[""]["auroc"].value == pytest.approx(roc_auc_score(is_fast, shown))
    assert one["average_precision"].value == pytest.approx(average_precision_score(is_fast, shown))
    assert record.scores[""]["accuracy"].value == record.value.value == pytest.approx((said == is_fast).mean())
    recalls = [said[is_fast].mean(), (~said)[~is_fast].mean()]
    assert [one["recall"].value, one["specificity"].value] == pytest.approx(recalls)
    assert record.scores[""]["balanced_accuracy"].value == pytest.approx(np.mean(recalls))
    assert record.confusion["fast"] == {"slow": int((~said)[is_fast].sum()), "fast": int(said[is_fast].sum())}
    assert (said == (shown >= record.called_from["fast"])).all()
    # the most sensitivity of all thresholds that keep the specificity
    kept = [least for least in shown if (shown < least)[~is_fast].mean() >= 0.6]
    assert one["sensitivity"].value == pytest.approx((shown >= min(kept))[is_fast].mean())
    assert (shown < one["threshold"].value)[~is_fast].mean() >= 0.6
    is_right, bins = (shown > 0.5) == is_fast, np.minimum((confidence * 10).astype(int), 9)
    gaps = [(bins == k).mean() * abs((is_right - confidence)[bins == k].mean()) for k in np.unique(bins)]
    assert record.scores[""]["ece"].value == pytest.approx(sum(gaps))
    page = (out / "evaluation.html").read_text()
    assert page.index("ROC curves; AUROC fast") < page.index("By class")
    # as predict answers each picture
    loaded = SuperModel(model, CPU)
    for row in rows[:6]:
        found = loaded.predict(pictures / f"{row['case']}.png")
        assert found.class_scores["fast"] == pytest.approx(float(row["probability of fast"]))
        assert (found.model, model.study.labels[found.label]) == (row["answered by"], row["answer"])
        assert found.temperature == 1.5
        # what is asked for alone is read as the network gives it
        assert loaded.predict(pictures / f"{row['case']}.png", site="west").temperature == 1.0


@pytest.mark.parametrize("change", [{"labels": {"2": "lesion"}}, {"labels_annotated": [2]}])
def test_a_hospital_that_drew_one_label_has_its_score_alone(evaluate, contents, clinic, change):
    for one in json.loads((clinic / "dataset.json").read_text())["test"]:
        drawn = nibabel.load(clinic / one["label"])
        array = np.asarray(drawn.dataobj)
        nibabel.save(nibabel.Nifti1Image(np.where(array == 2, array, 0), drawn.affine), clinic / one["label"])
    change_json(clinic / "dataset.json", training=[], validation=[], **change)
    lesions = replace(contents, models={"global": answering(contents.study, SHAPE, 0.0, 0.0, 9.0)})
    code, record, printed, out = evaluate(lesions, clinic)
    assert (code, [*record.groups], record.value) == (ExitCode.COMPLETE, ["lesion"], record.scores["lesion"]["dice"])
    said = "the label maps do not show organ: nothing here says how well the model finds it"
    assert said in printed and said in (out / "evaluation.html").read_text()
    # what another label is answered counts as background
    _, record, printed, _ = evaluate(contents, clinic)
    assert record and record.value.value == 0, printed


# --- beside another model


def write_other(tmp_path, contents):
    write_model_folder(tmp_path / "other", contents)
    return "--against", tmp_path / "other"


def test_two_segmentations_differ_by_the_mean_over_the_same_cases(evaluate, contents, phantoms, tmp_path):
    nothing = replace(contents, models={"global": answering(contents.study, SHAPE, 9.0, 0.0, 0.0)})
    _, record, printed, out = evaluate(contents, phantoms / UNSEEN_SITE, *write_other(tmp_path, nothing))
    found = record.against
    # the other finds nothing: its Dice is 0 in each case
    assert found.num_cases == record.num_cases and found.difference.value == record.value.value and found.aurocs == {}
    low, high = found.difference.interval
    line = f"dice {found.difference.value:+.3f} ({low:+.3f} to {high:+.3f})"
    assert line in printed and line in (out / "evaluation.html").read_text()


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        ((0.001, 0.2), "better beyond chance, so that it may take the other's place"),
        ((0.0, 0.2), "not better beyond chance, so that the other stays in use"),
        ((-0.2, -0.001), "worse than the other, so that the other stays in use"),
        (None, "not better beyond chance, so that the other stays in use"),
    ],
)
def test_a_version_is_released_only_where_it_is_better_beyond_chance(interval, verdict):
    assert judge_release(Estimate(0.1, interval, 20)) == verdict


def test_a_model_does_not_differ_from_itself(evaluate, contents, phantoms, tmp_path):
    against = write_other(tmp_path, contents)
    _, record, *_ = evaluate(contents, phantoms / UNSEEN_SITE, "--part", "test", *against)
    assert record.against.difference.value == 0 and record.against.difference.interval is None


def test_two_classifications_are_compared_by_delongs_test(evaluate, windows, tmp_path):
    study, scores = make_classes(), []
    first, second = (classify(build_model(study, (3, 1, 64), seed).state_dict()) for seed in (1, 2))
    for one in (second, first):
        *_, out = evaluate(one, windows / "eva")
        rows = {row["case"]: row for row in read_cases(out)}
        scores.append(np.array([float(rows[case]["probability of fast"]) for case in sorted(rows)]))
    is_fast = np.array([rows[case]["true class"] == "fast" for case in sorted(rows)])
    # each case is a recording of its own
    wanted = compare_aurocs(*scores, is_fast)
    _, record, printed, _ = evaluate(first, windows / "eva", *write_other(tmp_path, second))
    assert record.against.aurocs.keys() == {"fast"}
    found = record.against.aurocs["fast"]
    assert (found.difference, found.p_value) == (pytest.approx(wanted.difference), pytest.approx(wanted.p_value))
    assert f"AUROC of fast {found.difference:+.3f}" in printed and f"p {found.p_value:.2g} (DeLong)" in printed


def test_a_model_of_other_labels_is_no_comparison(evaluate, contents, phantoms, tmp_path):
    study = contents.study.model_copy(update={"labels": {1: "organ", 2: "tumour"}})
    against = write_other(tmp_path, replace(contents, study=study))
    code, _, printed, _ = evaluate(contents, phantoms / UNSEEN_SITE, *against)
    assert code == ExitCode.BAD_INPUT and "--against must be a model with the labels of MODEL" in printed


# --- answers that the study's rule forbids to use


def forbid(contents, **rule):
    return replace(contents, study=contents.study.model_copy(update={"do_not_use": DoNotUseSettings(**rule)}))


def test_what_the_studys_rule_forbids_is_counted_with_its_reasons(evaluate, contents, phantoms, tmp_path):
    data = load(phantoms / UNSEEN_SITE, contents.study, tmp_path)
    parts = (data.training, data.validation, data.test)
    means = [np.mean(part.images[rows]) for part in parts for rows in group_positions(part.cases).values()]
    # Half of the cases are brighter than it.
    domain = replace(FORM, intensities=(Range("mean", 0.0, float(np.median(means))),))
    darker = forbid(replace(contents, domain=domain), on_unlike_image=True)
    _, record, printed, out = evaluate(darker, phantoms / UNSEEN_SITE)
    rows, found = read_cases(out), record.withheld
    used = [float(row["dice"]) for row in rows if not row["do not use"]]
    assert found.num_cases == len(rows) - len(used) and 0 < found.num_cases < len(rows)
    assert found.reasons == {"its intensities are unlike the training images'": found.num_cases}
    assert record.value.value == pytest.approx(np.mean([float(row["dice"]) for row in rows]))
    assert f"not to be used, by the study's rule: {found.num_cases} of {len(rows)} answers" in printed
    page = (out / "evaluation.html").read_text()
    opening, worst = page[: page.index("By label")], min(rows, key=lambda row: float(row["dice"]))
    assert "not to be used, by the study&#39;s rule" in opening
    where = f"{worst['case']}, dice {float(worst['dice']):.3f}; most wrong in slice {worst['worst slice']} of its file"
    assert f"Worst case: {where}, from 0" in opening
    # a model that answers organ everywhere
    assert "lesion is never found: Dice 0 in" in opening


def test_a_rule_that_forbids_nothing_or_all_and_no_rule_are_told_apart(evaluate, contents, phantoms):
    known = {"test": {"north": {"value": 0.9, "labels": {"1": 0.9, "2": 0.6}, "num_cases": 3, "num_excluded": 0}}}
    found = {}
    for least in (0.5, 0.7, None):
        asked = forbid(replace(contents, facts=known), label_below=least) if least else contents
        _, record, printed, _ = evaluate(asked, phantoms / UNSEEN_SITE, "--part", "test")
        found[least] = record.withheld
        assert ("not to be used" in printed) == (least is not None)
    assert found[None] is None and found[0.5].num_cases == 0 and found[0.5].reasons == {}
    reason = "lesion has a mean test Dice of 0.60, and the study asks for 0.70"
    assert found[0.7].reasons == {reason: found[0.7].num_cases}


# --- other forms of a model


def assert_same_numbers(found, wanted):
    for group, scores in wanted.scores.items():
        for name in scores.keys() & SHARES:
            one = scores[name]
            assert found.scores[group][name].value == pytest.approx(one.value, abs=1e-4), (group, name)
    assert found.num_cases == wanted.num_cases and found.fingerprint == wanted.fingerprint


def draw_all_labels(study, shape, seed):
    """Return the weights of a new network that is as sure of each label, on noise: it would never draw one of them."""
    model = build_model(study, shape, seed).eval()
    with torch.inference_mode():
        means = model(torch.rand(4, *shape, generator=torch.manual_seed(seed))).transpose(0, 1).flatten(1).mean(dim=1)
    state = model.state_dict()
    last = [name for name in state if name.endswith("bias")][-1]
    return state | {last: state[last] - means}


@pytest.fixture
def evaluate_exported(evaluate, phantoms, tmp_path):
    """Return a function that evaluates a super model of two new networks, and the bundle exported from it."""

    def give(study, shape):
        models = {name: draw_all_labels(study, shape, seed) for seed, name in enumerate(("north", "south"))}
        _, wanted, *_ = evaluate(Contents(study, shape, models, "mean", domain=FORM), phantoms / UNSEEN_SITE)
        export_bundle(tmp_path / "model", tmp_path / "bundle")
        code, found, printed, _ = evaluate(tmp_path / "bundle", phantoms / UNSEEN_SITE)
        assert code == ExitCode.COMPLETE, printed
        assert wanted.value.value > 0
        assert_same_numbers(found, wanted)
        return found

    return give


@pytest.mark.slow  # an export
def test_a_bundle_answers_as_the_super_model_that_it_was_exported_from(evaluate_exported):
    assert "by its own rule for the 2 models in it" in evaluate_exported(make_study(), SHAPE).rule


@pytest.mark.slow  # an export
def test_a_bundle_of_models_that_see_patches_of_volumes_answers_as_the_super_model(evaluate_exported):
    study = make_study(dimensions=3, patches={"size": [16, 16, 16]}, transforms=[])
    study = study.model_copy(update={"model": study.model.model_copy(update={"normalization": "batch"})})
    assert evaluate_exported(study, (1, 16, 16, 16)).size_unit == "ml"


@pytest.mark.slow  # an export
def test_a_bundle_of_a_classification_reads_its_probabilities_as_the_model_did(evaluate, windows, tmp_path):
    calling, tested = OperatingPoint(2.0, {1: 0.4}), {"value": 0.5, "labels": {"0": 0.5, "1": 0.5}}
    own = {"east": 0.05, "west": 0.95}
    facts = {"test": {site: tested | {"calling": {"thresholds": {"1": one}}} for site, one in own.items()}}
    state = build_model(make_classes(), (3, 1, 64), 0).state_dict()
    _, wanted, said, _ = evaluate(classify(state, calling=calling, facts=facts), windows / "eva")
    export_bundle(tmp_path / "model", tmp_path / "bundle")
    _, found, printed, _ = evaluate(tmp_path / "bundle", windows / "eva")
    far = "the threshold of fast is far from some sites' own"
    assert far in said and far in printed
    assert_same_numbers(found, wanted)
    assert found.confusion == wanted.confusion
    assert found.called_from == pytest.approx(wanted.called_from)
    assert found.calibration.temperature == 2.0 and "model's threshold" in printed


def test_the_model_of_a_runs_folder_is_evaluated_and_its_images_are_said_to_be_unknown(
    evaluate, contents, phantoms, tmp_path
):
    folder = tmp_path / "run"
    save_tensors(folder / "best.pt", contents.models["global"])
    (folder / "study.yaml").write_text(dump_yaml(plain_study(contents.study)))
    (_, wanted, *_), (code, found, printed, _) = (
        evaluate(model, phantoms / UNSEEN_SITE, "--part", "test") for model in (contents, folder)
    )
    assert code == ExitCode.COMPLETE and found.value == wanted.value
    assert "the super model does not say what images it learnt from" in printed


@pytest.mark.parametrize(
    ("break_it", "reason"),
    [
        (lambda bundle: (bundle / "configs" / "metadata.json").write_text("{}"), "that silofl export wrote; it lacks"),
        (lambda bundle: (bundle / "models" / "model.ts").write_bytes(b"no model"), "models must be as silofl export"),
    ],
)
def test_a_bundle_that_says_nothing_of_its_images_or_is_broken_is_refused(
    evaluate, contents, phantoms, tmp_path, break_it, reason
):
    bundle = tmp_path / "bundle"
    (bundle / "configs").mkdir(parents=True)
    (bundle / "models").mkdir()
    about = {"super_model": {"members": ["global"], "fingerprint": "0", "facts": {}, "threshold": None}}
    (bundle / "configs" / "metadata.json").write_text(json.dumps(about))
    how = {"image_shape": [1, 32, 32], "domain": dump_record(FORM), "calling": {}, "usual": {}}
    (bundle / "configs" / "inference.json").write_text(json.dumps(how))
    (bundle / "configs" / "study.yaml").write_text(dump_yaml(plain_study(contents.study)))
    break_it(bundle)
    code, record, printed, _ = evaluate(bundle, phantoms / UNSEEN_SITE)
    assert code == ExitCode.BAD_INPUT and record is None and reason in printed


def test_groups_of_cases_are_scored_withheld_and_compared(evaluate, pictures):
    content = json.loads((pictures / "dataset.json").read_text())
    for number, one in enumerate(content["test"]):
        one["groups"] = {"sex": "F" if number < 10 else "M", "age": 30 + number, "ward": f"w{number // 21}"}
    (pictures / "dataset.json").write_text(json.dumps(content))
    options = ("--part", "test", "--by", "sex", "--by", "age=40,50", "--by", "ward")
    _, record, printed, out = evaluate(choose_by_picture(pictures), pictures, *options)
    right = {row["case"]: row["true class"] == row["answer"] for row in read_cases(out)}
    sex, age = record.subgroups["sex"], record.subgroups["age"]
    assert sex["F"].scores["accuracy"].value == pytest.approx(np.mean([right[f"c{i}"] for i in range(10)]))
    # four patients are 50 or older; without the next group too they would follow from the others
    sizes = {group: one.num_cases for group, one in age.items()}
    assert sizes == {"under 40": 10, "40 to under 50": None, "50 and above": None}
    assert record.subgroups["ward"]["w1"].num_cases is None and "withheld" in printed
    page = (out / "evaluation.html").read_text()
    assert "By sex" in page and "recall of fast" in page and "permutation test over patients" in page
    # the recalls of two classes, of women against men and of the young against the others
    assert "corrected for all 4 comparisons" in page


def test_a_hospitals_floor_is_its_site_yamls(evaluate, contents, phantoms, tmp_path):
    (tmp_path / "site.yaml").write_text("data: /data\nstate_dir: /state\nmin_patients: 2\n")
    _, record, _, _ = evaluate(
        contents, phantoms / UNSEEN_SITE, "--by", "scanner", "--site-config", tmp_path / "site.yaml"
    )
    # NIfTI names no scanner
    assert record.least == 2 and [*record.subgroups["scanner"]] == ["not stated"]


def test_what_groups_are_by_is_known_or_refused(evaluate, contents, phantoms):
    code, _, printed, _ = evaluate(contents, phantoms / UNSEEN_SITE, "--by", "scaner")
    assert code == ExitCode.BAD_INPUT and "not by 'scaner' (did you mean 'scanner'?)" in printed
    with pytest.raises(SystemExit):
        evaluate(contents, phantoms / UNSEEN_SITE, "--by", "age=")
