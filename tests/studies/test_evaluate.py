import csv
import json
import shutil
from dataclasses import replace
from itertools import count

import nibabel
import numpy as np
import pytest
import torch
from monai.metrics import compute_hausdorff_distance, compute_surface_dice
from PIL import Image
from scipy import ndimage
from sklearn.metrics import average_precision_score, roc_auc_score

from silofl.base.errors import ExitCode
from silofl.base.schema import dump_record, read_record
from silofl.base.settings import dump_yaml, parse
from silofl.command_line.cli import main
from silofl.core.operating_point import OperatingPoint
from silofl.core.roc import find_predictive_values
from silofl.data.counts import SiteCounts
from silofl.data.data_profile import DataProfile, Range
from silofl.data.learnt import record_learnt
from silofl.data.site_data import load_site_data
from silofl.inference import SuperModel
from silofl.inference.contents import Contents
from silofl.inference.directory import write_model_folder
from silofl.inference.evaluation import Evaluation
from silofl.models import build_model
from silofl.models.selector import build_selector
from silofl.study import Study
from silofl_desk.phantoms.phantoms import UNSEEN_SITE
from silofl_desk.studies.runs.leave_out import measure_models

from ..conftest import SMALL_UNET, change_json

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("undrawn")]
SHAPE, CPU = (1, 32, 32), torch.device("cpu")
FORM = DataProfile(kinds=("volumes",))
CROP = {"CenterSpatialCrop": {"roi_size": [32, 32]}}
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
    return Contents(study, SHAPE, {"global": answering(study, SHAPE, 0.0, 9.0, 0.0)}, "only", data_profile=FORM)


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


def test_the_value_is_that_of_a_left_out_sites_test_and_cases_stay_in_their_table(
    evaluate, contents, phantoms, tmp_path
):
    code, record, printed, out = evaluate(contents, phantoms / UNSEEN_SITE)
    data = load(phantoms / UNSEEN_SITE, contents.study, tmp_path)
    unseen = measure_models(SuperModel(contents, CPU), (data.training, data.validation, data.test))
    assert (code, record.num_cases, record.unit, record.num_units) == (ExitCode.COMPLETE, 6, "patient", 6)
    # That is on the prepared grid.
    assert record.value.value == pytest.approx(unseen["models"]["global"], rel=0.01)
    assert record.parts == ("training", "validation", "test")
    low, high = record.value.interval
    assert f"dice: {record.value.value:.3f} ({low:.3f} to {high:.3f})" in printed
    organ, lesion = record.scores["organ"], record.scores["lesion"]
    assert organ["lesion_sensitivity"].value == 1 and lesion["lesion_sensitivity"].value == 0
    # every voxel is organ
    assert record.size_unit == "ml" and organ["size_error"].value > 0
    page = (out / "evaluation.html").read_text()
    never = "lesion is never found: Dice 0 in"
    assert all(sentence in page for sentence in ("Worst cases", "no medical device", "organ", never))
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


@pytest.mark.parametrize("data", [{"transforms": [CROP]}, FINE])
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
    model = Contents(study, SHAPE, {"global": build_model(study, SHAPE, 3).state_dict()}, "only", data_profile=FORM)
    _, record, _, out = evaluate(model, folder, "--part", "test")
    rows, found = {row["case"]: row for row in read_cases(out)}, {"organ": [], "lesion": []}
    for name, truth in drawn.items():
        said = SuperModel(model, CPU).predict(folder / f"{name}.nii.gz").label_map
        for number, label in ((1, "organ"), (2, "lesion")):
            one, other = said == number, truth == number
            overlap = 2 * (one & other).sum() / (one.sum() + other.sum())
            assert float(rows[name][f"{label} Dice"]) == pytest.approx(overlap)
            assert float(rows[name][f"{label} predicted ml"]) == pytest.approx(one.sum() * 0.75 / 1000)
            assert float(rows[name][f"{label} true ml"]) == pytest.approx(other.sum() * 0.75 / 1000)
            numbers, count = ndimage.label(other, np.ones((3, 3, 3)))
            hit = {*numbers[one & other].tolist()}
            assert [int(rows[name][f"{label} {key}"]) for key in ("components", "components found")] == [
                count,
                len(hit),
            ]
            surface = np.nan
            if one.any():
                pair = [torch.from_numpy(mask[None, None]) for mask in (one, other)]
                hd95 = compute_hausdorff_distance(
                    *pair, include_background=True, percentile=95, spacing=[0.5, 0.5, 3.0]
                )
                assert float(rows[name][f"{label} HD95 mm"]) == pytest.approx(float(hd95), abs=1e-5)
                surface = float(compute_surface_dice(*pair, [2.0], include_background=True, spacing=[0.5, 0.5, 3.0]))
            found[label].append((overlap, (one.sum() - other.sum()) * 0.75 / 1000, surface, len(hit)))
    assert record.lesions["lesion"] == 3 * 25
    for label, numbers in found.items():
        dice, errors, surfaces, hits = np.transpose(numbers)
        scores = record.scores[label]
        assert scores["dice"].value == pytest.approx(np.mean(dice))
        assert scores["size_error"].value == pytest.approx(np.mean(errors))
        assert scores["size_error"].interval[1] == pytest.approx(np.mean(errors) + 1.96 * np.std(errors, ddof=1))
        assert scores["lesion_sensitivity"].value == pytest.approx(hits.sum() / record.lesions[label])
        if not np.isnan(surfaces).all():
            assert scores["surface_dice"].value == pytest.approx(np.nanmean(surfaces), abs=1e-5)


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
    assert code == ExitCode.BAD_INPUT and "--cache lies in --out" in printed


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
    assert "1 case refused" in printed and "exceed 50 mm" in printed
    (row,) = (row for row in read_cases(out) if row["refused"])
    assert "exceed 50 mm" in row["refused"]
    assert row["case"] in (out / "evaluation.html").read_text()
    said = "the file does not state how its axes lie in the body"
    assert [number for text, number in record.warnings.items() if text.startswith(said)] == [1] and said in printed


def test_what_predict_warns_of_is_counted_and_a_learnt_data_set_is_no_test(evaluate, contents, phantoms, tmp_path):
    data = load(phantoms / UNSEEN_SITE, contents.study, tmp_path)
    test = {"value": 0.4, "labels": {"1": 0.8, "2": 0.01}, "num_cases": 3, "num_patients": 3, "num_excluded": 0}
    facts = {"data": {"coast": dump_record(SiteCounts.of(data))}, "test": {"north": test}}
    odd = replace(
        contents, data_profile=DataProfile(kinds=("volumes",), intensities=(Range("mean", 5, 6),)), facts=facts
    )
    _, record, printed, _ = evaluate(odd, phantoms / UNSEEN_SITE)
    unlearnt = "the model cannot recognise lesion (test Dice 0.01 at the best site)"
    assert record.warnings == {unlearnt: 6, "its intensities are unlike the training images'": 6}
    assert "Dice in test: organ 0.80, lesion 0.01" in printed and record.quality in printed
    assert f"warning: {unlearnt}: 6 of 6 cases" in " ".join(printed.split())
    # Before the first number.
    assert 0 <= printed.find("learnt from this very dataset.json") < printed.find("Dice")
    *_, printed, _ = evaluate(odd, phantoms / UNSEEN_SITE, "--part", "test")
    assert "learnt from this very dataset.json" not in printed


def test_a_model_whose_images_nobody_can_compare_is_not_passed_in_silence(evaluate, contents, phantoms, tmp_path):
    said = "whether the model learnt from these images could not be checked: "
    for part in ("all", "test"):
        *_, printed, _ = evaluate(contents, phantoms / UNSEEN_SITE, "--part", part)
        assert f"{said}it does not name its run" in printed
    here = SiteCounts.of(load(phantoms / UNSEEN_SITE, contents.study, tmp_path))
    of_others = replace(contents, facts={"run": "organs-1", "data": {"x": dump_record(replace(here, digest="0"))}})
    *_, printed, _ = evaluate(of_others, phantoms / UNSEEN_SITE)
    assert f"{said}no record of run organs-1 is here; where this hospital took part in it, name its site" in printed
    # Unless the run lies beside the model.
    record_learnt(tmp_path / "sites" / "coast" / "organs-1", load(phantoms / UNSEEN_SITE, contents.study, tmp_path))
    *_, printed, _ = evaluate(of_others, phantoms / UNSEEN_SITE)
    assert "the model learnt from 3 of these cases: they are no test of it" in printed
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
    assert code == 2 and "images that the model learnt from: 1 (first: 'x0')" in error
    # The record is the site's, which forgets it with the study.
    forget = ["site", "forget", contents.study.name, "--site", "coast", "--site-config", settings, "--yes"]
    assert silofl(*forget)[0] == 0 and not [*tmp_path.rglob("learnt_from.json")]
    code, _, printed, _ = evaluate(learnt, clinic, "--part", "test", "--site-config", settings)
    assert code == 0 and "could not be checked: no record of run organs-1 is here" in printed


def make_classes():
    settings = {"name": "moves", "task": "classification", "labels": {0: "slow", 1: "fast"}, "metric": "accuracy"}
    settings |= {"data": {"channels": 3, "intensity": "raw", "split_unit": "recordings"}, "rounds": 1, "device": "cpu"}
    settings |= {"model": {"name": "activity_cnn"}, "training": {"loss": "cross_entropy"}}
    return parse(Study, settings | {"algorithm": {"name": "fedavg"}}, "study.yaml")


def classify(state=None, **more):
    """Return a model that calls every window slow, with probability 1 / (1 + 1 / e) = 0.731, or has other weights."""
    study, shape = make_classes(), (3, 1, 64)
    state = answering(study, shape, 1.0, 0.0) if state is None else state
    return Contents(study, shape, {"global": state}, "only", data_profile=DataProfile(kinds=("windows",)), **more)


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
    operating_point = OperatingPoint(1.5, {1: 0.4})
    more = {"data_profile": DataProfile(kinds=("pictures",)), "operating_point": operating_point}
    return Contents(study, shape, models, "selector", selector.state_dict(), ("east", "west"), **more)


def test_all_numbers_of_a_classification_are_of_the_probabilities_in_the_table_of_cases(evaluate, pictures):
    model = choose_by_picture(pictures)
    _, record, printed, out = evaluate(model, pictures, "--part", "test", "--prevalence", "0.05")
    rows = read_cases(out)
    assert {row["answered by"] for row in rows} == {"east", "west"}
    values = find_predictive_values(*(record.scores["fast"][key].value for key in ("recall", "specificity")), 0.05)
    said = "if 0.05 of the patients have fast: positive predictive value {:.3f}, negative {:.3f}".format(*values)
    assert said in printed and said in (out / "evaluation.html").read_text()
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
    assert (said == (shown >= record.decision_thresholds["fast"])).all()
    is_right, bins = (shown > 0.5) == is_fast, np.minimum((confidence * 10).astype(int), 9)
    gaps = [(bins == k).mean() * abs((is_right - confidence)[bins == k].mean()) for k in np.unique(bins)]
    assert record.scores[""]["ece"].value == pytest.approx(sum(gaps))
    assert record.temperature == 1.5 and "temperature, 1.50" in printed
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


@pytest.mark.parametrize(("background", "alarms"), [(0.0, 3), (99.0, 0)])
def test_where_no_case_holds_a_label_false_alarms_are_counted(evaluate, contents, clinic, background, alarms):
    records = json.loads((clinic / "dataset.json").read_text())["test"][:3]
    for one in records:
        drawn = nibabel.load(clinic / one["label"])
        nibabel.save(nibabel.Nifti1Image(np.zeros(drawn.shape, np.uint8), drawn.affine), clinic / one["label"])
    change_json(clinic / "dataset.json", training=[], validation=[], test=records)
    answer = replace(contents, models={"global": answering(contents.study, SHAPE, background, 9.0, 0.0)})
    code, record, printed, out = evaluate(answer, clinic)
    said = f"false alarms in {alarms} of 3 cases without organ or lesion"
    assert code == ExitCode.COMPLETE and said in printed and said in (out / "evaluation.html").read_text()
    assert "never found" not in printed and "1.000" not in printed
    assert record.value.value == (0 if alarms else None)


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
    assert "By sex" in page and "recall of fast" in page and "are not tested against one another" in page
    code, _, printed, _ = evaluate(choose_by_picture(pictures), pictures, "--by", "scaner")
    assert code == ExitCode.BAD_INPUT and "not by 'scaner' (did you mean 'scanner'?)" in printed
    with pytest.raises(SystemExit):
        evaluate(choose_by_picture(pictures), pictures, "--by", "age=")
