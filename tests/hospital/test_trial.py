import hashlib
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from silofl.base.errors import TrainingError
from silofl.base.files import save_tensors, write_json
from silofl.base.settings import parse, read_yaml
from silofl.inference.contents import Contents
from silofl.inference.directory import write_model_folder
from silofl.inference.model_file import pack_model
from silofl.models import build_model
from silofl.parts.dp_sgd import FILE
from silofl.study import Study
from silofl.training.privacy_budget import PrivacyBudget
from silofl.training.private import compute_epsilon
from silofl_desk.studies.comparisons.methods import find_method_algorithm
from silofl_hospital.site.candidate import read_candidate
from silofl_hospital.site.data import check_data
from silofl_hospital.site.trial import check_leaving, check_privacy, check_training
from tests.conftest import change_json, list_records

from ..conftest import SMALL_UNET
from .conftest import STUDY, change_site

SGD = {"optimizer": "sgd", "momentum": 0.0, "batch_size": 2}


def test_a_rounds_steps_are_counted_and_timed(candidate):
    answer = check_training(candidate(training={"batch_size": 2, "local_epochs": 3}))
    # 5 examples are 3 batches of at most 2, three times
    assert answer.status == "ok" and answer.facts["steps_per_round"] == 9
    # What the parts do beside the steps is counted too.
    assert 9 * answer.facts["seconds_per_step"] < answer.facts["seconds_per_round"]
    assert answer.facts["seconds_per_step"] > 0 and answer.facts["peak_bytes"] > 1 << 20


def test_a_site_that_would_always_be_late_must_not_join(candidate):
    answer = check_training(candidate(federation={"task_timeout_s": 1e-6}))
    assert answer.status == "failed" and "longer than federation.task_timeout_s" in answer.sentence


@pytest.mark.parametrize(
    ("algorithm", "kinds"),
    [
        ({"name": "local"}, {"numbers"}),
        ({"name": "harmofl", "stays": "batchnorm"}, {"weights", "amplitude", "numbers"}),
        ({"name": "adafed", "statistics": {"self_weight": 0.3}}, {"weights", "statistics", "numbers"}),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_all_that_would_leave_is_named_by_kind(candidate, algorithm, kinds):
    answer = check_leaving(candidate(algorithm=algorithm))
    assert answer.status == "ok" and set(answer.facts["kinds"]) == kinds | {"usual_values"}
    assert "secret" not in str(answer)


# What ready-made settings of a hospital let leave.
READY = read_yaml(Path(__file__).parents[2] / "site_configs/hospital/site.yaml")["may_leave"]


@pytest.mark.parametrize(
    ("algorithm", "first", "later"),
    [
        # Without a personal model the global one answers for the site.
        (find_method_algorithm("fedsm-apfl"), {"weights", "batchnorm", "selector"}, {"personal_model"}),
        (
            {"name": "fedsm", "selector": {"labels": "best_model"}, "extra_rounds": 2},
            {"weights", "batchnorm"},
            {"selector"},
        ),
    ],
    ids=["personal models", "selector afterwards"],
)
def test_what_leaves_in_a_later_round_must_be_allowed(candidate, kit, algorithm, first, later):
    site = candidate(algorithm=algorithm, training=SGD)
    answer = check_leaving(site)
    assert answer.status == "ok" and set(answer.facts["kinds"]) == first | later | {"numbers", "usual_values"}
    assert all(kind in answer.sentence.partition("a later round")[2] for kind in later)
    change_site(kit, may_leave=[kind for kind in READY if kind not in later])
    answer = check_leaving(candidate(algorithm=algorithm, training=SGD))
    assert "personal_model" not in answer.sentence
    if "selector" in later:
        assert answer.status == "failed" and "lacks selector, which only a later round takes out" in answer.sentence
    else:
        assert answer.status == "ok"


def test_what_too_few_patients_withhold_is_said(candidate, kit):
    change_site(kit, min_patients=6)
    answer = check_leaving(candidate(algorithm={"name": "adafed"}))
    assert "statistics" not in answer.facts["kinds"]
    assert "withheld: statistics, usual_values, of fewer than 6 patients in training" in answer.sentence
    # Means that are withheld only at the end, and features.
    assert ", of fewer than 6 patients in training" in check_leaving(candidate()).sentence
    change_site(kit, min_patients=5, may_leave=READY)
    assert "withheld" not in check_leaving(candidate()).sentence


def test_as_many_bytes_leave_as_the_models_hold(candidate):
    site = candidate(algorithm={"name": "scaffold"}, training=SGD)
    kinds = check_leaving(site).facts["kinds"]
    assert kinds.keys() == {"weights", "batchnorm", "control", "numbers", "usual_values"}
    wanted = sum(array.nbytes for array in site.server.parts["model"].common.values())
    # one number for each parameter; the buffers' are BatchNorm's
    assert 0 < kinds["control"]["bytes"] < kinds["weights"]["bytes"] + kinds["batchnorm"]["bytes"] == wanted
    assert "control variate" in kinds["control"]["purpose"]


@pytest.mark.parametrize("kinds", [["weights"], []])
def test_a_site_that_would_refuse_its_own_answers_fails(candidate, kit, kinds):
    change_site(kit, may_leave=kinds)
    # As in the job, where the site looks at its answer before NVFlare's filters take anything out.
    add_filter(kit, "ExcludeBatchNorm")
    answer = check_leaving(candidate())
    # The study's network has BatchNorm, which travels with FedAvg.
    assert answer.status == "failed" and "widen may_leave in site.yaml" in answer.sentence
    assert f"the site lets {'only weights' if kinds else 'no arrays'} leave, not batchnorm" in answer.sentence
    assert "ask the site" not in answer.sentence


def add_filter(kit, name):
    path = kit / "local" / "privacy.json"
    policy = json.loads(path.read_text())
    policy["scopes"][0]["task_result_filters"].insert(0, {"path": f"silofl.flare.filters.{name}"})
    path.write_text(json.dumps(policy))


def test_a_site_whose_filter_excludes_batchnorm_joins_without_it(candidate, kit):
    add_filter(kit, "ExcludeBatchNorm")
    answer = check_leaving(candidate())
    assert answer.status == "ok" and answer.facts["kinds"].keys() == {"weights", "numbers", "usual_values"}


PRIVATE = {"baseline_comparison": False, "model": SMALL_UNET | {"normalization": "instance"}}
PRIVATE |= {"privacy": {"dp_sgd": {"noise": 2.0, "clip": 1.0, "delta": 0.01}}}


def limited(site, epsilon):
    return replace(site, settings=site.settings.model_copy(update={"max_epsilon": epsilon}))


def test_the_trial_says_the_epsilon_and_leaves_nothing(candidate, tmp_path, monkeypatch):
    for name in ("here", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    # torch's compiler makes a folder of its own where it is imported first
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiler"))
    site = candidate(**PRIVATE)
    answer = check_privacy(site)
    assert answer.status == "ok" and "4 rounds spend epsilon" in answer.sentence
    assert "at delta 0.01 for each of 5 patients" in answer.sentence
    assert answer.facts["epsilon"] == compute_epsilon([PrivacyBudget(2.0, 0.4, 8)], 0.01)
    assert check_training(site).status == "ok"
    trained = check_leaving(site)
    assert trained.status == "ok" and set(trained.facts["kinds"]) == {"weights", "numbers"}
    assert [*(tmp_path / "here").iterdir(), *(tmp_path / "temporary").iterdir()] == []
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["cache"]
    assert list(tmp_path.rglob("dp_sgd*")) == []


def test_a_trials_batch_does_not_count_as_a_round(candidate):
    # The round's two steps see each of five patients with a probability of 0.4, the trial's one step both of its two.
    whole, batch = (compute_epsilon([PrivacyBudget(2.0, *steps)], 0.01) for steps in ((0.4, 2), (1.0, 1)))
    assert whole < 0.9 < batch
    site = limited(candidate(**PRIVATE, rounds=1), 0.9)
    assert check_privacy(site).status == check_leaving(site).status == "ok"


def count_before(candidate, *spent):
    candidate.state_folder.mkdir(parents=True, exist_ok=True)
    write_json(candidate.state_folder / FILE, {"spent": [one._asdict() for one in spent]})


def test_what_the_site_has_spent_before_counts(candidate):
    held = candidate(**PRIVATE)
    alone = check_privacy(held).facts["epsilon"]
    count_before(held, PrivacyBudget(2.0, 0.4, 8, "patient"))
    together = compute_epsilon([PrivacyBudget(2.0, 0.4, 16)], 0.01)
    answer = check_privacy(held)
    assert answer.facts["epsilon"] == together > alone
    assert answer.sentence.startswith("4 rounds, with the 8 steps that were counted before, spend epsilon")
    for limit, status in ((together, "ok"), ((alone + together) / 2, "warning"), (alone / 2, "failed")):
        assert check_privacy(limited(held, limit)).status == status
    count_before(held, PrivacyBudget(2.0, 0.4, 8, "example"))
    with pytest.raises(TrainingError, match="must be example, by which dp_sgd.json of site 'north' has counted"):
        check_privacy(held)


def test_a_hospital_that_only_tests_trains_nothing(candidate, kit, pictures, tmp_path):
    cases = list_records(json.loads((pictures / "dataset.json").read_text()))
    change_json(pictures / "dataset.json", training=[], validation=[], test=cases)
    study = parse(Study, STUDY, "study.yaml")
    model = {"global": build_model(study, (1, 32, 32), seed=0).state_dict()}
    write_model_folder(tmp_path / "supermodel", Contents(study, (1, 32, 32), model, "only"))
    save_tensors(tmp_path / "model.pt", pack_model(tmp_path / "supermodel"))
    digest = hashlib.sha256((tmp_path / "model.pt").read_bytes()).hexdigest()
    site = candidate(rounds=0, model=STUDY["model"] | {"pretrained": "model.pt", "pretrained_sha256": digest})
    answer = check_data(site)
    assert answer.status == "ok" and answer.facts["cases"] == {"training": 0, "validation": 0, "test": 9}
    assert check_training(site).sentence == "nothing is trained: the study tests a finished model"
    answer = check_leaving(site)
    assert answer.status == "ok" and answer.facts["kinds"].keys() == {"evaluation", "numbers"}
    assert "secret" not in str(answer)
    change_site(kit, min_patients=10)
    answer = check_leaving(read_candidate(kit, site.study_file, None))
    assert "lets evaluation leave only from 10 patients" in answer.sentence


def test_a_survey_is_checked_whatever_its_labels(candidate, kit):
    site = candidate(algorithm={"name": "survey"}, rounds=0, labels={1: "another name than the data have"})
    assert check_data(site).status == "ok" and "nothing is trained" in check_training(site).sentence
    answer = check_leaving(site)
    assert answer.status == "ok" and set(answer.facts["kinds"]) == {"survey", "numbers"}
    change_site(kit, may_leave=["weights"])
    assert "leave, not survey" in check_leaving(candidate(algorithm={"name": "survey"}, rounds=0)).sentence
