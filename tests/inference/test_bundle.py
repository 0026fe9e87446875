import json

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from torch import nn

from silofl.base.errors import ConfigError, DataError
from silofl.inference.directory import plain_study
from silofl.inference.super_model import FALLBACK
from silofl.study.sections import DoNotUseSettings
from silofl_hospital.inference.bundle import FilePredictor
from silofl_hospital.inference.opened import open_model

ABOUT = {"members": ["global"], "facts": {}, "threshold": None}


class Bright(nn.Module):
    """Says organ where the image is bright, or a fixed class; the members' weights are given."""

    def __init__(self, is_map, weights=(1.0,)):
        super().__init__()
        self.is_map, self.weigher = is_map, lambda images: torch.tensor(weights)

    def forward(self, images):
        bright = (images[:, :1] > 0.5).float()
        return (
            torch.cat([1 - bright, bright], dim=1) if self.is_map else torch.tensor([[0.2, 0.8]]).repeat(len(images), 1)
        )


@pytest.fixture
def picture(tmp_path):
    pixels = np.zeros((8, 12), np.uint8)
    pixels[2:5, 3:9] = 255
    Image.fromarray(pixels).save(tmp_path / "a.png")
    return pixels


@pytest.fixture
def make_predictor(tmp_path, make_study):
    def make(task, shape=(1, 8, 12), network=None, domain=None, calling=None, rule=None, about=None, **settings):
        study = make_study(task, data={"intensity": "dtype"}, **settings)
        study = study.model_copy(update={"do_not_use": rule and DoNotUseSettings(**rule)})
        (tmp_path / "study.yaml").write_text(yaml.safe_dump(plain_study(study)))
        (tmp_path / "metadata.json").write_text(json.dumps({"super_model": ABOUT | (about or {})}))
        network = network or Bright(task == "segmentation")
        return FilePredictor(network, str(tmp_path / "study.yaml"), shape, torch.device("cpu"), domain, calling)

    return make


@pytest.fixture
def predict(tmp_path, make_predictor):
    """Predict a file of the folder by a bundle into ``out``."""
    return lambda task, name="a.png", **options: make_predictor(task, **options)(
        str(tmp_path / name), str(tmp_path / "out")
    )


def test_a_file_becomes_its_label_map(tmp_path, predict, picture):
    path = predict("segmentation")
    assert path == tmp_path / "out" / "a_labels.png"
    np.testing.assert_array_equal(np.asarray(Image.open(path)), picture == 255)


def test_a_file_becomes_its_class_or_its_findings(predict, picture):
    path = predict("classification")
    found = json.loads(path.read_text())
    assert path.name == "a_class.json" and found["label"] == 1
    assert found["class_scores"] == pytest.approx({"normal": 0.2, "tumour": 0.8})
    path.unlink()
    found = json.loads(predict("multilabel").read_text())
    assert (found["findings"], found["class_scores"]) == (["tumour"], pytest.approx({"normal": 0.2, "tumour": 0.8}))


def test_a_class_is_called_from_the_bundles_threshold_on(predict, picture):
    path = predict("classification", calling={"temperature": 2.0, "thresholds": {"tumour": 0.9}})
    found = json.loads(path.read_text())
    # odds of 4 and 9 become 2 and 3
    assert found["label"] == 0 and found["class_scores"]["tumour"] == pytest.approx(2 / 3)
    assert found["called_from"] == {"tumour": pytest.approx(3 / 4)}


@pytest.mark.parametrize("task", ["segmentation", "classification"])
def test_an_answer_is_never_replaced_as_it_may_be_another_patients(tmp_path, predict, picture, task):
    before = predict(task).read_bytes()
    (tmp_path / "other").mkdir()
    Image.fromarray(255 - picture).save(tmp_path / "other" / "a.png")
    with pytest.raises(ConfigError, match="out must hold no answer by the name of the input, not a_.*; name another"):
        predict(task, "other/a.png")
    (answer,) = (tmp_path / "out").iterdir()
    assert answer.read_bytes() == before


class Broken(Bright):
    def forward(self, images):
        return torch.full((len(images), 3, *images.shape[2:]), torch.nan)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"shape": (1, 8, 8)}, "as in training"),
        ({"model": {"normalization": "batch_stateless"}}, "a single image must not be predicted alone by a network"),
        ({"network": Broken(True)}, "the model 'small' must answer with finite probabilities"),
        ({}, "a.png must show something, not one intensity alone"),
    ],
    ids=["another size", "alone", "not finite", "blank"],
)
def test_a_file_that_cannot_be_answered_is_refused_as_predict_refuses_it(tmp_path, predict, picture, options, sentence):
    if not options:
        Image.fromarray(np.full((8, 12), 200, np.uint8)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match=sentence):
        predict("segmentation", **options)
    assert not (tmp_path / "out").exists()


def test_a_file_of_another_kind_is_refused_and_an_unusual_one_is_answered_with_a_warning(predict, picture, caplog):
    with pytest.raises(DataError, match="a.png must be like the training images, which are volumes, not pictures"):
        predict("segmentation", domain={"kinds": ["volumes"]})
    domain = {"kinds": ["pictures"], "intensities": [{"measure": "mean", "low": 0.9, "high": 1}]}
    assert predict("segmentation", domain=domain).is_file()
    # 18 of 96 pixels are white.
    assert "a.png: its intensities are unlike the training images': mean 0.188 after the preparation" in caplog.text


SCORES = {"north": {"value": 0.4, "labels": {"1": 0.8, "2": 0.06}}, "south": {"value": 0.4, "labels": {"2": 0.04}}}
NOT_LEARNT = (
    "the model cannot recognise lesion (validation Dice 0.06 at the best site): ignore what it says about lesion"
)
LOW = "lesion has a mean validation Dice of 0.05, and the study asks for 0.50"


@pytest.mark.parametrize(
    ("weights", "threshold", "model", "is_fallback"),
    [
        ((1.0, 0.0, 0.0), 0.6, "global", True),
        ((0.0, 0.0, 1.0), 0.6, "south", False),
        # the hospital's own model has a share of every answer
        ((0.7, 0.3, 0.0), 0.6, "ensemble", True),
        ((0.0, 0.3, 0.7), 0.6, "ensemble", False),
        # no threshold decides
        ((1.0, 0.0, 0.0), None, "global", False),
    ],
)
def test_a_bundle_says_what_the_studys_rule_forbids_as_its_super_model_does(
    tmp_path, make_predictor, picture, caplog, weights, threshold, model, is_fallback
):
    about = {"members": ["global", "north", "south"], "threshold": threshold, "facts": {"validation": SCORES}}
    rule = {"on_fallback": True, "label_below": 0.5}
    predictor = make_predictor("segmentation", network=Bright(True, weights), rule=rule, about=about)
    answer = predictor.model.answer(np.zeros((1, 1, 8, 12), np.float32))
    assert (answer.model, answer.is_fallback) == (model, is_fallback)
    wanted = (FALLBACK,) if is_fallback else ()
    assert predictor.model.list_warnings(answer, []) == (*wanted, NOT_LEARNT)
    assert predictor.model.list_reasons_against_use(answer, []) == (*wanted, LOW)
    with pytest.raises(DataError, match="a.png: DO NOT USE this answer: .*; --write_forbidden True writes it anyway"):
        predictor(str(tmp_path / "a.png"), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    logged = [record.getMessage() for record in caplog.records]
    assert logged[0] == f"a.png: DO NOT USE this answer: {'; '.join([*wanted, LOW])}"
    assert f"a.png: {NOT_LEARNT}" in logged
    predictor.write_forbidden = True
    path = predictor(str(tmp_path / "a.png"), str(tmp_path / "out"))
    assert Image.open(path).text == {"Description": "DO NOT USE"}


def test_a_class_that_must_not_be_used_says_so_in_its_file(tmp_path, make_predictor, picture):
    predictor = make_predictor("classification", rule={"label_below": 0.5})
    with pytest.raises(DataError, match="DO NOT USE this answer: the recall of normal is not known"):
        predictor(str(tmp_path / "a.png"), str(tmp_path / "out"))
    predictor.write_forbidden = True
    found = json.loads(predictor(str(tmp_path / "a.png"), str(tmp_path / "out")).read_text())
    assert found["do_not_use"][0] == "the recall of normal is not known, and the study asks for 0.50"


def test_the_programs_in_a_bundle_of_an_older_version_are_no_longer_read(tmp_path):
    for name in ("configs/metadata.json", "models/weights.pt2"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("{}")
    with pytest.raises(ConfigError, match="weights.pt2 is a program of torch.export, .* Export the super model again"):
        open_model(tmp_path, torch.device("cpu"))
