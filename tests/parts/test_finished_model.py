import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from silofl.base.errors import ConfigError
from silofl.base.files import save_tensors
from silofl.base.schema import read_file
from silofl.base.settings import parse
from silofl.data.data_profile import DataProfile
from silofl.data.learnt import FILE as LEARNT
from silofl.federation.egress import Gate, Request
from silofl.federation.run_folder import RunFolder
from silofl.federation.server import ServerRounds
from silofl.federation.site import SiteRounds
from silofl.inference.contents import Contents
from silofl.inference.directory import plain_study, write_model_folder
from silofl.inference.evaluation import Evaluation
from silofl.inference.evaluations import FILE, Evaluations
from silofl.inference.model_file import HEAD, pack_model
from silofl.models import build_model
from silofl.models.weights import read_start
from silofl.parts.finished_model import ROLE, SCORES
from silofl.parts.task import Message
from silofl.setup.site import Site
from silofl.study import Study

from ..conftest import Play
from .conftest import SITES

SHAPE = (1, 32, 32)


@pytest.fixture(scope="module")
def model(make_study, tmp_path_factory):
    """The folder of a model that nobody trained much: its answer is the same label everywhere."""
    study = make_study()
    network = build_model(study, SHAPE, seed=0)
    last = [one for one in network.modules() if isinstance(one, torch.nn.Conv2d | torch.nn.ConvTranspose2d)][-1]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.fill_(9)
    folder = tmp_path_factory.mktemp("model") / "supermodel"
    write_model_folder(
        folder, Contents(study, SHAPE, {"global": network.state_dict()}, "only", data_profile=DataProfile())
    )
    return folder


@pytest.fixture(scope="module")
def job(model, make_study, tmp_path_factory):
    """The folder of an evaluation's study.yaml, with the model beside it; and the study."""
    folder = tmp_path_factory.mktemp("config")
    save_tensors(folder / "model.pt", pack_model(model))
    digest = hashlib.sha256((folder / "model.pt").read_bytes()).hexdigest()
    values = plain_study(make_study()) | {"rounds": 0}
    values["model"] |= {"pretrained": "model.pt", "pretrained_sha256": digest}
    return folder, parse(Study, values, "study.yaml")


@pytest.fixture
def begin(play, job):
    """Begin an evaluation's run."""

    def start(**options):
        folder, study = job
        return play(study=study, pretrained=read_start(folder, study).arrays, **options)

    return start


@pytest.fixture(scope="module")
def evaluated(job, site_data, tmp_path_factory):
    """An evaluation's run that is over."""
    folder, study = job
    game = Play(study, site_data, tmp_path_factory.mktemp("evaluated"), SITES, read_start(folder, study).arrays)
    game.finish()
    return game


def finished(game, tmp_path):
    """Carry out a run, and return its results and what the hospitals say."""
    folder = RunFolder(tmp_path / "run", game.study)
    folder.finish(game.server, game.finish())
    record = read_file(Evaluations, folder.path / FILE)
    return json.loads((folder.path / "results.json").read_text()), record


def test_hospitals_test_a_model_and_no_case_is_named(begin, tmp_path):
    game = begin()
    results, record = finished(game, tmp_path)
    assert game.asked == [ROLE] and game.server.finished_rounds == 0
    assert (results["status"], results["rounds"], [*results["sites"]]) == ("COMPLETE", 0, [*SITES])
    assert results["model"].endswith("of study small, as it was given")
    # blobs of 12 x 12 in images of 32 x 32, all of which is predicted
    dice = 2 * 144 / (144 + 1024)
    assert record.sites["east"].scores[""]["dice"].value == round(dice, 3)
    assert {site: one["value"] for site, one in results["sites"].items()} == dict.fromkeys(SITES, round(dice, 3))
    assert record.sites["east"].scores["blob"]["lesion_sensitivity"].value == 1
    assert (record.sites["east"].num_cases, record.sites["east"].unit) == (2, "patient")
    # What names a case stays at the hospital.
    own = read_file(Evaluation, game.folder("east") / "evaluation.json")
    assert record.sites["east"].scores["blob"]["dice"].value == round(own.scores["blob"]["dice"].value, 3)
    cases, answer = (game.folder("east") / "cases.csv").read_text(), game.answers[ROLE]["east"]
    assert cases.count("\n") == 3 and answer.arrays.keys() == {SCORES}
    assert [case for case in game.sites["east"].data.test.cases if case in json.dumps(answer.meta)] == []


def lay_lesions(data, target, sizes, groups=()):
    """Copy the sites, with lesions of other sizes in east's test; each is of a patient of its own, in some groups."""
    if not target.exists():
        shutil.copytree(data, target, ignore=shutil.ignore_patterns(".*"))
    rows = np.arange(32 * 32).reshape(32, 32)
    truths = np.stack([rows < size for size in sizes]).astype(np.uint8)
    np.savez(target / "east" / "lesions.npz", images=np.zeros_like(truths) + 90 * truths, labels=truths)
    path = target / "east" / "dataset.json"
    records = [
        {"image": "lesions.npz", "label": "lesions.npz", "index": i, "patient": f"p{i}"} for i in range(len(sizes))
    ]
    for record, said in zip(records, groups, strict=False):
        record["groups"] = said
    path.write_text(json.dumps(json.loads(path.read_text()) | {"test": records}))
    return target


def refusals(game, answer=None, **settings):
    """Return why an answer, or the one that east gave, does not leave."""
    request = Request.of(ROLE, game.sent[ROLE]["east"])
    gate = Gate.of(game.study, Site(data="/data", state_dir="/state", **settings))
    return gate.refusal(request, answer or game.answers[ROLE]["east"])


def test_scores_leave_only_where_the_site_lets_them(evaluated):
    assert refusals(evaluated, min_patients=2) is None
    assert refusals(evaluated, may_leave=["evaluation"], min_patients=2) is None
    assert "lets only weights leave, not evaluation" in refusals(evaluated, may_leave=["weights"], min_patients=2)
    # two patients in each test
    assert "evaluation leave only from 3 patients" in refusals(evaluated, min_patients=3)


def test_a_hospital_of_few_test_patients_says_nothing(begin):
    game = begin(min_patients=3)
    tests = game.finish()
    assert tests.scores == {} and "only from 3 patients" in tests.missing["east"]
    assert game.server.parts[ROLE].outcome(game.server, {}).make_files() == {}


def with_label(meta):
    return meta["metrics"]["test"] | {"labels": {"patient 7": 0.5}}


MORE = {
    "an array of cases": lambda one: Message({**one.arrays, "evaluation/cases": np.ones((2, 4))}, one.meta),
    "a picture as scores": lambda one: Message({SCORES: np.ones((32, 32))}, one.meta),
    "single cases as rows": lambda one: Message({SCORES: np.concatenate([one.arrays[SCORES]] * 2)}, one.meta),
    "texts as scores": lambda one: Message({SCORES: one.arrays[SCORES].astype("U9")}, one.meta),
    "a case's name": lambda one: Message(one.arrays, one.meta | {"case": "patient 7"}),
    "a text beside": lambda one: Message(one.arrays, one.meta | {ROLE: one.meta[ROLE] | {"worst": "patient 7"}}),
    "a text as unit": lambda one: Message(one.arrays, one.meta | {ROLE: one.meta[ROLE] | {"unit": "patient 7"}}),
    "a label of its own": lambda one: Message(one.arrays, one.meta | {"metrics": {"test": with_label(one.meta)}}),
    "weights": lambda one: Message({**one.arrays, "model/network.model.2.conv.weight": np.ones(3)}, one.meta),
}


@pytest.mark.parametrize("name", MORE)
def test_the_gate_refuses_more_than_typed_scores(evaluated, name):
    honest = evaluated.answers[ROLE]["east"]
    assert refusals(evaluated, honest, min_patients=0) is None
    assert refusals(evaluated, MORE[name](honest), min_patients=0)


def forged(place, value):
    """Return a change of one number of east's scores."""

    def change(task, site, answer):
        rows = answer.arrays[SCORES].copy()
        rows[0, place] = value
        return Message({SCORES: rows}, answer.meta) if site == "east" else answer

    return change


@pytest.mark.parametrize(("place", "value"), [(0, 1.5), (0, -0.5), (1, 0.9), (2, np.nan), (3, 1.5), (3, -1), (3, 1000)])
def test_a_server_refuses_scores_that_are_none(begin, place, value):
    game = begin()
    tests = game.finish(change=forged(place, value))
    assert [*tests.scores] == ["north", "west"] and "site 'east'" in tests.missing["east"]
    assert [*game.server.parts[ROLE].sites] == ["north", "west"]


def test_a_model_of_another_study_is_tested_by_none(job, model, play):
    folder, study = job
    other = parse(Study, plain_study(study) | {"labels": {1: "tumour"}}, "study.yaml")
    with pytest.raises(ConfigError, match=r"labels of study.yaml must be as in the study 'small'"):
        play(study=other, pretrained=read_start(folder, study).arrays)


def test_another_file_than_the_agreed_model_is_refused(job, tmp_path):
    folder, study = job
    (tmp_path / "model.pt").write_bytes((folder / "model.pt").read_bytes() + b" ")
    with pytest.raises(ConfigError, match="model.pt has SHA-256 .* model.pretrained_sha256"):
        read_start(tmp_path, study)
    arrays = read_start(folder, study).arrays
    with pytest.raises(ConfigError, match=r"model.pretrained must be a finished model with its model.json"):
        ServerRounds.start(study, "run", ["east"], {name: one for name, one in arrays.items() if name != HEAD})


def test_renamed_training_patients_are_known_by_their_site(job, play, site_data, tmp_path, caplog):
    data = shutil.copytree(site_data, tmp_path / "data")
    trained = play(SITES, data=data, rounds=1)
    finished(trained, tmp_path / "trained")
    folder, study = tmp_path, job[1]
    save_tensors(folder / "model.pt", pack_model(tmp_path / "trained" / "run" / "supermodel"))
    digest = hashlib.sha256((folder / "model.pt").read_bytes()).hexdigest()
    study = study.model_copy(update={"model": study.model.model_copy(update={"pretrained_sha256": digest})})
    # The same pixels, for other patients and as other cases.
    path = data / "east" / "dataset.json"
    content = json.loads(path.read_text())
    renamed = [one | {"patient": f"x{i}", "case": f"x{i}"} for i, one in enumerate(content["training"])]
    path.write_text(json.dumps(content | {"training": [], "test": renamed}))

    def evaluate(run):
        game = play(SITES, data=data, study=study, pretrained=read_start(folder, study).arrays)
        game.server = ServerRounds.start(study, run, [*SITES], read_start(folder, study).arrays)
        results, record = finished(game, tmp_path / run)
        return results, {site: one.is_checked for site, one in record.sites.items()}

    results, checked = evaluate("evaluation")
    assert results["status"] == "INCOMPLETE"
    assert [site for site, one in results["sites"].items() if one and one["value"] is not None] == ["north", "west"]
    # What leaves is that the data have a fault; the site's log says which.
    assert results["reasons"] == [
        "site east did not test the model (the site's data have a fault; the site's own log names it)"
    ]
    assert "images that the model learnt from: 5 (first: 'x0')" in caplog.text
    assert checked == {"north": True, "west": True}
    # The record may have been deleted, with the study: that it is not there is no proof that nothing was learnt.
    (trained.folder("east") / LEARNT).unlink()
    results, checked = evaluate("another")
    assert (results["status"], checked) == ("COMPLETE", {"east": False, "north": True, "west": True})


# Twelve patients; whoever is in one group and not in another is the twelfth.
SIZES = tuple(range(100, 220, 10))


def told(site_data, job, play, target, groups, divisions, sizes=SIZES, name="small", run="run", **changes):
    """Let east test the model, by groups; return its game, and group -> Dice and number of cases that it tells."""
    folder, study = job
    study = study.model_copy(update={"subgroups": divisions, "name": name} | changes)
    data = lay_lesions(site_data, target, sizes, groups)
    game = play(("east",), study=study, pretrained=read_start(folder, study).arrays, data=data, min_patients=5)
    game.server = ServerRounds.start(study, run, ["east"], read_start(folder, study).arrays)
    game.missing = game.finish().missing
    if game.server.parts[ROLE].sites == {}:
        return game, {}
    scores = game.server.parts[ROLE].sites["east"].scores
    return game, {group: one["dice"] for group, one in scores.items() if one["dice"].value is not None}


def differing_groups(*answers):
    """Return pairs of told groups whose numbers of cases differ by less than five: they tell a mean of few."""
    sizes = [one.num_cases for answer in answers for group, one in answer.items() if group != "blob"]
    return sorted({(a, b) for a in sizes for b in sizes if 0 < b - a < 5})


def test_two_divisions_of_a_job_show_no_single_patient(site_data, job, play, tmp_path):
    # 6 women, of whom 5 had scanner A: 6 x F - 5 x A is the sixth woman's Dice.
    groups = [{"sex": "FM"[i >= 6], "scanner": "AB"[i >= 5]} for i in range(12)]
    divisions = {"sex": ("F", "M"), "scanner": ("A", "B")}
    game, found = told(site_data, job, play, tmp_path / "data", groups, divisions)
    assert found[""].num_cases == 12 and found["sex: F"].num_cases == 6 == found["sex: M"].num_cases
    assert differing_groups(found) == []
    assert "scanner: B" in game.server.parts[ROLE].sites["east"].not_said
    # Divisions of the same patients hide nobody from one another.
    groups = [{"sex": "FM"[i >= 6], "scanner": "AB"[i >= 6]} for i in range(12)]
    divisions |= {"scanner": ("A",)}
    _, found = told(site_data, job, play, tmp_path / "alike", groups, divisions, run="alike")
    assert found["sex: F"].value == found["scanner: A"].value


def test_groups_that_differ_by_one_patient_are_told_once(site_data, job, play, tmp_path):
    sizes = range(100, 320, 10)
    groups = [{"weight": str(50 + 5 * i)} for i in range(22)]

    def told_by(limit, name):
        data = tmp_path / "data"
        game, found = told(site_data, job, play, data, groups, {"weight": (limit,)}, sizes, name=name, run=name)
        return found, game.server.parts[ROLE].sites["east"].not_said

    # Of six and sixteen patients; between the limits of both jobs is the seventh alone.
    first, _ = told_by(78.0, "first")
    assert [first[group].num_cases for group in ("", "weight: under 78", "weight: 78 and above")] == [22, 6, 16]
    # Each job has a process of its own, as after a restart, and another name of the study.
    second, not_said = told_by(83.0, "second")
    assert differing_groups(first, second) == [] and second[""] == first[""]
    assert {"weight: under 83", "weight: 83 and above"} <= not_said.keys()
    # Groups that differ from those told by five patients are told.
    third, _ = told_by(103.0, "third")
    assert third["weight: under 103"].num_cases == 11


def test_a_patient_who_joins_is_told_of_with_others(site_data, job, play, tmp_path):
    def told_of(count, divisions, run):
        sizes = range(100, 100 + 10 * count, 10)
        return told(site_data, job, play, tmp_path / "data", (), divisions, sizes, run=run)

    by_sex = {"sex": ("F", "M")}
    _, first = told_of(12, {}, "first")
    # One more: the scores of the twelve are told, also to whoever asks another question.
    assert told_of(13, {}, "same")[1] == first
    _, other = told_of(13, by_sex, "other")
    assert other[""] == first[""]
    assert told_of(17, {}, "more")[1][""].num_cases == 17
    # One fewer: without the twelfth only an answer that was given is given again.
    assert told_of(11, by_sex, "again")[1] == other
    game, found = told_of(11, {"sex": ("F",)}, "fewer")
    assert found == {} and "differ by fewer than 5 from those of an earlier evaluation" in game.missing["east"]


def test_the_file_of_what_was_told_must_be_whole(site_data, job, play, tmp_path):
    game, _ = told(site_data, job, play, tmp_path / "data", (), {})
    path = game.settings.answered_file("east")
    assert path.stat().st_mode & 0o77 == 0 and "p11" not in path.read_text()
    site = Site(data="/data", state_dir="/state/{study}/{site}")
    assert site.answered_file("east") == Path("/state/.answered-east.json")
    path.write_text(path.read_text()[:-20])
    game, found = told(site_data, job, play, tmp_path / "data", (), {}, run="again")
    assert found == {} and "the site's settings have a fault; the site's own log names it" in game.missing["east"]


@pytest.mark.parametrize(
    "divisions", [{"age": (45.0,)}, {"PatientID": ("p1",)}, {"StudyDate": ("2024",)}, {"KVP": (9,)}]
)
def test_a_job_that_divides_too_finely_is_refused(site_data, job, play, tmp_path, divisions):
    game, found = told(site_data, job, play, tmp_path / "data", (), divisions)
    (name,) = divisions
    assert found == {} and name in game.missing["east"]


def test_a_hospital_may_name_more_elements_that_divide(site_data, job, play, tmp_path):
    folder, study = job
    study = study.model_copy(update={"subgroups": {"KVP": (100.0,)}})
    game = play(("east",), study=study, pretrained=read_start(folder, study).arrays)
    game.sites["east"] = SiteRounds("east", study, game.settings.model_copy(update={"divisions": ("KVP",)}))
    game.finish()
    assert "KVP: not stated" in game.server.parts[ROLE].sites["east"].scores
    for name in ("PatientID", "PatientAge", "AccessionNumber", "PatientName", "SOPInstanceUID", "AcquisitionDate"):
        with pytest.raises(
            ConfigError, match="divisions.* must be an element of DICOM that names no patient and no day"
        ):
            parse(Site, {"data": "/data", "state_dir": "/state", "divisions": [name]}, "site.yaml")
