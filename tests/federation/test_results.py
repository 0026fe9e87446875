import json
from dataclasses import fields
from pathlib import Path

import pytest

import silofl
from silofl.base.errors import ConfigError
from silofl.base.schema import dump_record, read_record
from silofl.data.counts import SiteCounts
from silofl.federation.ledger import Round
from silofl.federation.results import Results, read_results, schema_page
from silofl.inference.evaluation import Evaluation
from silofl.inference.evaluations import Evaluations
from silofl.training.joined import Joined
from silofl.training.site_score import SiteScore
from silofl_desk.studies.runs.simulation import Simulation

STUDY = {
    "study": "small",
    "task": "segmentation",
    "algorithm": "fedavg",
    "preset": "recommended",
    "recipe": {"step": "plain"},
    "seed": 0,
}
STUDY |= {"rounds": 2, "metric": "dice", "labels": {"1": "organ"}, "normalization": "batch", "split_unit": "patient"}
FAILED = STUDY | {"version": "0.1.0", "status": "FAILED", "reasons": ["no"], "sites": {}, "validation": {}}
FAILED |= dict.fromkeys(("best_round", "model", "mean", "pooled"))
SCORE = {"value": 0.25, "num_cases": 1, "num_excluded": 0, "labels": {"1": 0.25}}
EAST = {"value": 0.5, "num_cases": 2, "num_excluded": 1, "labels": {"organ": 0.5}}
COMPLETE = FAILED | {"status": "COMPLETE", "reasons": [], "sites": {"east": EAST, "west": None}, "mean": 0.5}
COMPLETE |= {"run": "small-1", "validation": {"east": SCORE}}
CLASSES = {"sites": {"east": EAST | {"also": {"accuracy": 0.5}, "label_cases": {"organ": 2}}, "west": None}}
SUPER = {"outputs": ["east"], "threshold": None, "threshold_without": {}}
CHOSEN = {"models": {"global": 0.5, "east": None}, "choices": {"global": 2}}
CHOSEN |= {"selector": {"cases": {"east": 2}}}
WITH_SUPER = COMPLETE | {"super_model": SUPER, "sites": {"east": EAST | CHOSEN, "west": None}}


def without(values, key):
    return {name: value for name, value in values.items() if name != key}


@pytest.mark.parametrize("values", [FAILED, COMPLETE, COMPLETE | CLASSES, WITH_SUPER])
def test_result_is_written_with_the_keys_read(values):
    assert json.loads(json.dumps(dump_record(read_record(Results, values, "results.json")))) == values


def test_result_of_a_released_version_is_refused(tmp_path):
    older = COMPLETE | {"sites": {"east": 0.5}, "cases": {"east": 2}}
    (tmp_path / "results.json").write_text(json.dumps(older))
    with pytest.raises(ConfigError, match="results.json: cases is not .*; read it with silofl 0.1.0, which wrote it"):
        read_results(tmp_path)


@pytest.mark.parametrize("key", [*COMPLETE])
def test_a_finished_result_without_one_of_its_keys_is_refused(key):
    with pytest.raises(ConfigError, match=f"results.json: {key} is missing( with status COMPLETE)?"):
        read_record(Results, without(COMPLETE, key), "results.json")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"pooledd": 0.5}, r"results.json: pooledd is not a known key \(did you mean 'pooled'\?\)"),
        ({"validation": {"east": SCORE | {"valeu": 1}}}, "validation.east.valeu .* mean 'value'"),
        ({"sites": {"east": "0.5"}}, "results.json: sites.east must be keys and values, not '0.5'"),
        ({"seed": None}, "results.json: seed is missing with status COMPLETE"),
        ({"status": "COMPLET"}, r"not 'COMPLET' \(did you mean 'COMPLETE'\?\)"),
    ],
)
def test_misspelt_key_or_wrong_type_is_refused_by_name(changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        read_record(Results, COMPLETE | changes, "results.json")


def test_former_keys_are_ignored_and_spread_is_computed():
    former = {"spread": 0.5, "everyone": {}, "unchosen": {}, "left": {}, "digest": "", "batchnorm": "", "cautions": []}
    sites = {"east": EAST, "north": EAST | {"value": 0.25}, "west": None}
    found = read_record(Results, COMPLETE | former | {"sites": sites}, "results.json")
    # Half of the difference of 0.5 and 0.25.
    assert found.spread == 0.125 and dump_record(found) == COMPLETE | {"sites": sites}
    assert read_record(Results, FAILED, "results.json").spread is None


def test_result_of_a_removed_algorithm_is_refused():
    with pytest.raises(ConfigError, match="Algorithm 'oneshot' is not in this version any more. Choose fedavg."):
        read_record(Results, COMPLETE | {"algorithm": "oneshot"}, "results.json")


@pytest.mark.parametrize("place", [".", "workspace/silofl", "server/simulate_job/silofl"])
def test_result_is_found_in_run_download_and_simulation(tmp_path, place):
    with pytest.raises(ConfigError, match=f"{tmp_path} has no results.json"):
        silofl.read_results(str(tmp_path))
    with pytest.raises(ConfigError, match="NVFlare has no result of the run"):
        silofl.read_results(None)
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    (tmp_path / place / "results.json").write_text(json.dumps(COMPLETE))
    assert silofl.read_results(tmp_path).values == {"east": 0.5, "west": None}


def test_the_page_with_the_schema_is_current():
    page = Path(__file__).resolve().parents[2] / "docs" / "results.md"
    assert page.read_text(encoding="utf-8") == schema_page()


@pytest.mark.parametrize("record", [Results, Round, Joined, SiteScore, SiteCounts, Evaluation, Evaluations, Simulation])
def test_a_former_key_has_a_field_of_its_record(record):
    names = {field.name for field in fields(record)}
    assert {*record.RENAMED_KEYS.values()} <= names
    assert names.isdisjoint(record.RENAMED_KEYS)


def test_a_result_of_release_0_4_is_read():
    recipe = {"step": "contrast", "stays_home": "batchnorm", "parts": ["control", "statistics"]}
    recipe["constants"] = {"contrast": {"mu": 1.0}, "server_optimizer": {"is_nesterov": True}}
    east = EAST | {"calling": None}
    results = read_record(Results, COMPLETE | {"recipe": recipe, "sites": {"east": east, "west": None}}, "results.json")
    assert results.recipe == {
        "step": "moon",
        "stays": "batchnorm",
        "parts": ["scaffold", "statistics"],
        "constants": {"moon": {"mu": 1.0}, "fedopt": {"nesterov": True}},
    }
    assert results.sites["east"].operating_point is None
