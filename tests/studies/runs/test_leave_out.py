import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console

from silofl.algorithms.fedsm.paper import THRESHOLDS
from silofl.base.errors import ConfigError, DataError
from silofl.base.schema import dump_record
from silofl.base.settings import parse
from silofl.command_line.cli import main
from silofl.core.operating_point import OperatingPoint
from silofl.data.data_profile import DataProfile
from silofl.data.parts import Examples
from silofl.data.site_data import load_site_data
from silofl.inference import SuperModel
from silofl.inference.contents import Contents
from silofl.inference.directory import read_model_folder, write_model_folder
from silofl.models.selector import build_selector
from silofl.study import Study
from silofl_desk.report.left_out_site import unseen_section, unseen_sentence, unseen_table
from silofl_desk.studies.runs.leave_out import assemble_models, measure_models, run_unseen_test
from silofl_hospital.report.evaluation_page import format_estimate
from silofl_hospital.report.page import print_blocks

from ...conftest import SMALL_UNET, write_site
from ...report.conftest import joined
from ..conftest import write_result
from ..test_evaluate import answering as answering_by_biases
from ..test_evaluate import classify

SHAPE = (1, 32, 32)
CPU = torch.device("cpu")


def make_study(normalization="instance", **algorithm):
    settings = {"name": "small", "task": "segmentation", "labels": {1: "blob"}, "rounds": 1, "device": "cpu"}
    settings |= {"model": SMALL_UNET | {"normalization": normalization}}
    return parse(Study, settings | {"algorithm": {"name": "fedsm", **algorithm}}, "study.yaml")


def answering(study, is_sure):
    """Return the state of a network that labels every pixel, almost surely, or none, with probability 0.27."""
    return answering_by_biases(study, SHAPE, 10.0 if is_sure else -1.0)


def steered(study, scores):
    """Return the state of a selector whose probabilities are the same for every image."""
    selector = build_selector(study, len(scores), 0)
    with torch.no_grad():
        selector.network.head.weight.zero_()
        selector.network.head.bias.copy_(torch.log(torch.tensor(scores)))
    return selector.state_dict()


def make_contents(rule="selector", gamma=0.5, facts=None, **algorithm):
    """Return a super model: the global model labels nothing, north's all, south's nothing; north is 0.75 likely."""
    study = make_study(**algorithm)
    models = {name: answering(study, is_sure=name == "north") for name in ("global", "north", "south")}
    if rule != "selector":
        names = {"only": ["global"], "mean": ["north", "south"]}[rule]
        return Contents(study, SHAPE, {name: models[name] for name in names}, rule)
    outputs, scores = ("north", "south"), (0.75, 0.25)
    if not study.recipe.option("selector").learns_site:
        outputs, scores, gamma = ("global", *outputs), (0.125, 0.75, 0.125), None
    return Contents(study, SHAPE, models, rule, steered(study, scores), outputs, gamma, facts or {})


def make_part(*cases):
    """Return a part of pictures whose truth is the whole image, so that Dice is 1 for all and 0 for nothing."""
    images = np.random.default_rng(len(cases)).random((len(cases), *SHAPE), dtype=np.float32)
    targets = np.ones((len(cases), *SHAPE[1:]), np.uint8)
    return Examples(images, targets, cases, (None,) * len(cases), cases)


def found(contents, *parts):
    return measure_models(SuperModel(contents, CPU), parts or (make_part("a", "b"), make_part(), make_part("c")))


def by_gamma(result):
    return {one.threshold: one for one in result["by_threshold"]}


def test_below_its_score_the_sites_model_answers_and_above_it_the_global_one():
    result = found(make_contents())
    rows = by_gamma(result)
    assert tuple(rows) == THRESHOLDS
    for gamma, row in rows.items():
        # north's model, which is right, answers where 0.75 > gamma
        own = 3 if gamma < 0.75 else 0
        # Of all parts; one of them is empty.
        assert (row.value, row.choices) == (own / 3, {"global": 3 - own, "north": own, "south": 0})


def test_the_choice_is_that_of_the_tuned_gamma_even_where_another_is_better():
    result = found(make_contents(gamma=0.8))
    assert (result["threshold"], result["choices"]) == (0.8, {"global": 3, "north": 0, "south": 0})
    # the ensemble says 0.75 * 1 + 0.25 * 0.27 > 0.5 of every pixel
    assert result["models"] == {"global": 0.0, "north": 1.0, "south": 0.0, "ensemble": 1.0}
    # 0.74 is no candidate
    assert found(make_contents(gamma=0.74))["choices"]["north"] == 3
    # A selector of the best model has no gamma.
    best = found(make_contents(selector={"labels": "best_model"}, extra_rounds=1))
    assert best["by_threshold"] == () and best["threshold"] is None
    assert best["choices"] == {"global": 0, "north": 3, "south": 0}
    # A super model that answers as an ensemble is tested as one.
    assert found(make_contents(gamma=0.8, super_model={"answer": "ensemble"}))["rule"] == "ensemble"


def test_models_without_a_selector_are_tested_alone_without_cases_whose_truth_and_prediction_are_empty():
    part = make_part("a", "b")
    part.targets[0] = 0
    assert found(make_contents("only"), part) == {"rule": "only", "models": {"global": 0.0}}
    assert found(make_contents("mean")) == {"rule": "mean", "models": {"north": 1.0, "south": 0.0}}


@pytest.fixture
def load(tmp_path):
    """Read a site with a case to train with and one to test."""
    write_site(tmp_path / "coast", 0, {"training": 1, "test": 1})
    return lambda: load_site_data(tmp_path / "coast", make_study(), tmp_path / "cache", has_progress=False)


def refuse():
    pytest.fail("the test may not be made again")


@pytest.fixture
def run(tmp_path):
    write_model_folder(tmp_path / "supermodel", make_contents())
    return tmp_path


def test_the_test_is_written_and_made_once_of_the_same_model_and_data(run, load):
    def test(site, digest, load=load):
        return run_unseen_test(run, site, digest, load, Console(quiet=True))

    result = test("coast", "d")
    assert json.loads((run / "unseen.json").read_text()) == json.loads(json.dumps(dump_record(result)))
    assert (result.site, result.evaluation.num_cases) == ("coast", 2)
    assert test("coast", "d", refuse) == result
    assert test("shore", "d").site == "shore"
    assert test("shore", "other").digest == "other"
    write_model_folder(run / "supermodel", make_contents(gamma=0.8))
    assert test("shore", "other").threshold == 0.8
    (run / "unseen.json").write_text("{")
    assert test("shore", "other").threshold == 0.8


def test_without_a_super_model_one_is_put_together_from_the_sites_own_and_that_is_said(tmp_path, load, capsys):
    study = make_study("batch", name="fedbn")
    for site in ("north", "south"):
        contents = Contents(study, SHAPE, {site: answering(study, is_sure=site == "north")}, "only")
        write_model_folder(tmp_path / "sites" / site / "run-1" / "supermodel", contents)
    write_result(tmp_path, study, sites={"north": 1.0, "south": 0.0, "lost": None})
    result = run_unseen_test(tmp_path, "coast", "d", load, Console(soft_wrap=True))
    source = "the sites' own models (without lost)"
    assert f"the mean of {source} answers" in capsys.readouterr().out
    assert f"put together from {source}: only a simulation can do this" in unseen_sentence(result)
    assert (result.rule, result.assembled_from) == ("mean", source)
    # 144 of 1024 pixels are the blob: 2 * 144 / (1024 + 144) of all of them
    assert result.models == {"north": pytest.approx(288 / 1168), "south": 0.0}
    assert read_model_folder(tmp_path / "supermodel").sites == ("north", "south")


def test_the_sites_own_models_are_tested_there_too_alone_and_by_the_mean_of_their_answers(run, load):
    for site, normalization in (("north", "batch"), ("south", "instance")):
        study = make_study(normalization, name="fedavg")
        own = Contents(study, SHAPE, {"local": answering(study, is_sure=site == "north")}, "only")
        # What a site keeps lies in one folder.
        write_model_folder(run / "sites" / site / "run-1" / ("own" if site == "north" else "chosen"), own)
    keeps = {"north": dump_record(joined()), "south": dump_record(joined(chosen="local"))}
    write_result(run, study, sites={"north": 1.0, "south": 0.0}, joining=keeps)
    result = run_unseen_test(run, "coast", "d", load, Console(quiet=True))
    # as above; (1 + 0.27) / 2 > 0.5, so that the mean labels all, as north does
    value = pytest.approx(288 / 1168)
    assert result.own == {"north": value, "south": 0.0, "ensemble": value}
    rows = [row[0] for row in unseen_table(result).rows]
    assert "local model of north" in rows and "mean of the local models, were they handed out" in rows


def test_a_left_out_site_is_answered_as_evaluate_answers_it(tmp_path, windows, capsys):
    # fast with probability 1 / (1 + e) = 0.269, and called so from 0.2 on
    contents = classify(operating_point=OperatingPoint(2.0, {1: 0.2}))
    write_model_folder(tmp_path / "supermodel", contents)
    data = load_site_data(windows / "eva", contents.study, tmp_path / "cache", has_progress=False)
    result = run_unseen_test(tmp_path, "eva", "d", lambda: data, Console(quiet=True))
    assert main(["evaluate", f"{tmp_path}/supermodel", f"{windows}/eva", "--out", f"{tmp_path}/out"]) == 0
    assert json.loads((tmp_path / "out" / "evaluation.json").read_text()) == dump_record(result.evaluation)
    # 6 of 16 are
    assert (result.value, result.num_counted, result.models) == (6 / 16, 16, {"global": 10 / 16})
    capsys.readouterr()
    print_blocks(unseen_section(result, "fedavg").blocks, Console(soft_wrap=True))
    assert f"accuracy: {format_estimate(result.evaluation.value)}" in capsys.readouterr().out


def test_a_case_that_a_clinic_would_be_refused_does_not_count(tmp_path, load):
    volumes = replace(make_contents("only"), data_profile=DataProfile(kinds=("volumes",)))
    write_model_folder(tmp_path / "supermodel", volumes)
    with pytest.raises(DataError, match="unlike the training images: pictures"):
        run_unseen_test(tmp_path, "coast", "d", load, Console(quiet=True))


def test_a_run_in_which_no_site_kept_a_model_is_refused(tmp_path):
    write_result(tmp_path, make_study(), sites={"north": None})
    with pytest.raises(ConfigError, match="holds neither a super model nor the sites' models"):
        assemble_models(tmp_path)


def test_a_left_out_site_is_answered_with_statistics_of_its_own_training_images(tmp_path, load):
    study = make_study("batch_home", name="fedavg")
    state = answering(study, is_sure=True)
    write_model_folder(tmp_path / "supermodel", Contents(study, SHAPE, {"global": state}, "only"))
    result = run_unseen_test(tmp_path, "coast", "d", load, Console(quiet=True))
    # 144 of 1024 pixels are the blob, and all are labelled
    assert result.models == {"global": pytest.approx(288 / 1168)}
    assert "answers nothing" in read_model_folder(tmp_path / "supermodel").home_statistics


def test_each_models_statistics_are_taken_as_its_own_study_says():
    studies = {"plain": make_study("batch", name="fedavg"), "home": make_study("batch_home", name="fedavg")}
    states = {name: answering(study, is_sure=True) for name, study in studies.items()}
    model = SuperModel(Contents(studies["plain"], SHAPE, states, "mean"), torch.device("cpu"), studies)

    def read_statistics(name):
        return [value.clone() for key, value in model.network(name).state_dict().items() if key.endswith("running_var")]

    before = {name: read_statistics(name) for name in studies}
    model.fix_home_statistics(np.random.default_rng(0).normal(size=(4, *SHAPE)).astype(np.float32))
    kept = {name: all(map(torch.equal, before[name], read_statistics(name))) for name in studies}
    assert kept == {"plain": True, "home": False}
