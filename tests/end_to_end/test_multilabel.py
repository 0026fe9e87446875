"""Several findings per patient: from a table to a model whose answers every export repeats."""

import json

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from silofl.flare.components import name_components
from silofl.inference import SuperModel
from silofl_desk.studies.runs.simulation import study_file
from tests.conftest import count_cases

from .conftest import carried_out

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("decoded_here", "undrawn")]

SITES, FINDINGS = ("east", "north", "south"), ("device", "effusion")
TRAINING = {"loss": "cross_entropy", "batch_size": 8, "local_epochs": 3, "learning_rate": 0.003}
CHANGES = {"rounds": 3, "device": "cpu", "algorithm": {"name": "fedavg"}, "training": TRAINING}
CHANGES["model"] = {"name": "lenet5"}


def draw(rng, found):
    """Return a picture that is bright at its bottom with an effusion, and at its left with a device."""
    pixels = rng.normal(90, 15, (28, 28))
    if "effusion" in found:
        pixels[18:] += 60
    if "device" in found:
        pixels[:, :8] += 60
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Walk from a table of findings to a run; returns the folder of both."""
    folder, rng = tmp_path_factory.mktemp("findings"), np.random.default_rng(0)
    for site in SITES:
        (folder / "source" / site).mkdir(parents=True)
        rows = ["file,label,patient"]
        for number in range(60):
            found = [name for name in FINDINGS if rng.random() < 0.4]
            draw(rng, found).save(folder / "source" / site / f"{number}.png")
            rows.append(f"{number}.png,{'|'.join(found) or 'No Finding'},p{number}")
        (folder / "source" / site / "labels.csv").write_text("\n".join(rows))
    printed = carried_out("import", "table", folder / "source", folder / "data")
    assert "device" in printed and "effusion" in printed
    carried_out("new-study", folder / "data", folder / "own", "--from", "harmofl_stains")
    path = study_file(folder / "own")
    study = yaml.safe_load(path.read_text()) | CHANGES
    study["data"]["transforms"] = []
    path.write_text(yaml.safe_dump(study))
    name_components(path.parent, "fedavg")
    carried_out("simulate", folder / "own", "--data", folder / "data", "--out", folder / "run", "--in-process")
    return folder


def test_a_run_tells_each_findings_area_at_each_site_and_what_joining_gave(folder):
    results = json.loads((folder / "run" / "results.json").read_text())
    # 60 patients: 12 for the test
    assert (results["status"], count_cases(results)) == ("COMPLETE", dict.fromkeys(SITES, 12))
    for site in SITES:
        areas = results["sites"][site]["areas"]
        assert [*areas] == [*FINDINGS] and results["sites"][site]["value"] == pytest.approx(np.mean([*areas.values()]))
        # A network that has learnt nothing has 0.5.
        assert min(areas.values()) > 0.8
        cases = results["sites"][site]["label_cases"]
        assert cases["device"] + cases["no device"] == cases["effusion"] + cases["no effusion"] == 12
        # round(48 * 0.2) of the others are for the validation
        assert results["joining"][site]["num_units"] == 10
    page = (folder / "run" / "report.html").read_text()
    assert "sensitivity" in page and "specificity" in page


def test_prediction_evaluation_and_exports_agree_on_the_findings_of_a_patient(folder, tmp_path):
    model, image = folder / "run" / "supermodel", folder / "data" / "south" / "images" / "0.png"
    carried_out("predict", model, image, "--out", tmp_path / "answers")
    (record,) = json.loads((tmp_path / "answers" / "prediction.json").read_text())
    scores = record["class_scores"]
    assert record["findings"] == [name for name in FINDINGS if scores[name] > 0.5]
    carried_out("evaluate", model, folder / "data" / "south", "--part", "test", "--out", tmp_path / "evaluation")
    evaluation = json.loads((tmp_path / "evaluation" / "evaluation.json").read_text())
    results = json.loads((folder / "run" / "results.json").read_text())
    for name in FINDINGS:
        assert evaluation["scores"][name]["auroc"]["value"] == pytest.approx(
            results["sites"]["south"]["areas"][name], abs=1e-6
        )
    carried_out("export", model, "--out", tmp_path / "bundle")
    prepared = torch.from_numpy(np.asarray(Image.open(image), np.float32)[None, None] / 255)
    script = torch.jit.load(tmp_path / "bundle" / "models" / "model.ts")
    with torch.inference_mode():
        # It answers before the temperature, as its README says.
        read = (script(prepared)[0].logit() / record["temperature"]).sigmoid().tolist()
    assert read == pytest.approx([*scores.values()], abs=1e-5)
    readme = (tmp_path / "bundle" / "docs" / "README.md").read_text()
    assert (f"logit() / {record['temperature']:.6g}" in readme) == (record["temperature"] != 1)
    ours = SuperModel.load(model, "cpu").predict(str(image))
    assert ours.class_scores == pytest.approx(scores)
