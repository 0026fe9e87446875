"""NVFlare's form of a run's metrics: read by NVFlare's own tool, with the keys that NVFlare's own writer writes."""

import json
from types import SimpleNamespace

import pytest
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.widgets.metrics_artifact_writer import MetricsArtifactWriter
from nvflare.tool.job.job_cli import _discover_job_download_artifacts

from silofl.federation.ledger import Round
from silofl.federation.metrics_summary import metrics_summary, round_metrics
from silofl.federation.run_folder import RunFolder
from silofl.parts.part import Reported
from tests.conftest import score

LEDGER = [
    Round(
        1,
        asked=["east", "west"],
        answered=["east", "west"],
        examples={"east": 30, "west": 10},
        metrics={"east": {"loss": 0.5, "drift": 2.0}, "west": {"loss": 1.0}},
        validation={"east": score(0.25), "west": score(0.75)},
    ),
    Round(2, examples={"east": 30}, metrics={"east": {"loss": 0.25}}, validation={"east": score(0.4)}),
]
REPORTED = Reported(1, {}, LEDGER[0].validation, "best validation, round 1")


def test_the_summary_has_the_last_rounds_means_and_the_best_rounds_values():
    summary = metrics_summary("small", "dice", LEDGER, REPORTED, {"east": score(0.5), "west": score(0.7)})
    assert summary["final_aggregated_metrics"] == [
        {"name": "loss", "value": 0.25},
        {"name": "validation_dice", "value": 0.4},
    ]
    # (0.25 + 0.75) / 2 on validation, (0.5 + 0.7) / 2 on test
    assert summary["best_metrics"] == [
        {"name": "validation_dice", "value": 0.5},
        {"name": "test_dice", "value": pytest.approx(0.6)},
    ]
    assert (summary["job_name"], summary["final_round"], summary["best_round"]) == ("small", 2, 1)


def test_of_a_mean_of_rounds_the_summary_has_its_own_validation():
    mean = Reported(2, {}, {"east": score(0.5), "west": score(0.75)}, "mean of the models of rounds 1 to 2")
    best = metrics_summary("small", "dice", LEDGER, mean, {})["best_metrics"]
    # (0.5 + 0.75) / 2
    assert best == [{"name": "validation_dice", "value": 0.625}]


def test_each_round_is_one_line_with_the_means_and_every_sites_numbers():
    first, second = (json.loads(round_metrics("dice", record)) for record in LEDGER)
    # loss (0.5 + 1) / 2; only east measured a drift
    means = {one["name"]: one["value"] for one in first["aggregated_metrics"]}
    assert means == {"drift": 2.0, "loss": 0.75, "validation_dice": 0.5}
    metrics = [{"name": "loss", "value": 1.0}, {"name": "validation_dice", "value": 0.75}]
    assert first["sites"][1] == {"name": "west", "metrics": metrics, "weight": 10, "weight_key": "examples"}
    assert [site["name"] for site in second["sites"]] == ["east"]


def test_a_number_that_json_does_not_know_is_left_out():
    line = json.loads(round_metrics("dice", Round(1, metrics={"east": {"loss": float("nan"), "drift": 1.0}})))
    assert line["sites"][0]["metrics"] == line["aggregated_metrics"] == [{"name": "drift", "value": 1.0}]


@pytest.fixture
def of_nvflare(tmp_path):
    """The summary and the first line of NVFlare's own writer after one round with a loss, told by NVFlare's events."""
    writer, context = MetricsArtifactWriter(), FLContext()
    workspace = SimpleNamespace(get_run_dir=lambda job: str(tmp_path))
    context.get_engine = lambda: SimpleNamespace(get_workspace=lambda: workspace)
    context.get_job_id = lambda: "job"
    selection = {"best_round": 1, "best_metrics": {"loss": 0.5}, "key_metric": {"name": "loss", "mode": "max"}}
    site = {"name": "east", "metrics": {"loss": 0.5}, "weight": 3, "weight_key": "examples"}
    info = {"sites": [site], "key_metric": selection["key_metric"]}
    model = FLModel(metrics={"loss": 0.5}, current_round=1, meta={AppConstants.METRICS_AGGREGATION_INFO: info})
    context.set_prop(AppConstants.AGGREGATION_RESULT, model, private=True, sticky=False)
    context.set_prop(AppConstants.METRICS_SELECTION_INFO, selection, private=True, sticky=False)
    aggregated = (AppEventType.AFTER_AGGREGATION, AppEventType.GLOBAL_BEST_MODEL_AVAILABLE)
    for event in (EventType.START_RUN, *aggregated, EventType.END_RUN):
        writer.handle_event(event, context)
    folder = tmp_path / "metrics"
    lines = (folder / "round_metrics.jsonl").read_text().splitlines()
    return json.loads((folder / "metrics_summary.json").read_text()), json.loads(lines[0])


def test_the_keys_are_those_of_nvflares_own_writer(of_nvflare):
    summary, line = of_nvflare
    ours = metrics_summary("small", "dice", LEDGER, REPORTED, {})
    assert ours.keys() == summary.keys()
    for key in ("schema_version", "status", "round_metrics_file"):
        assert ours[key] == summary[key]
    first = json.loads(round_metrics("dice", LEDGER[0]))
    assert first.keys() == line.keys() and first["sites"][0].keys() == line["sites"][0].keys()
    assert ours["best_metrics"][0].keys() == summary["best_metrics"][0].keys()


def test_nvflares_download_finds_what_a_run_leaves(ended, tmp_path):
    game, tests = ended(rounds=2, name="harmofl")
    folder = RunFolder(tmp_path / "run", game.study)
    folder.finish(game.server, tests)
    folder.copy_results(tmp_path / "download" / "workspace" / "silofl")
    artifacts, missing = _discover_job_download_artifacts(str(tmp_path / "download"))
    assert "metrics_summary" not in missing and artifacts.keys() >= {"metrics_summary", "round_metrics"}
    summary = json.loads((tmp_path / "download" / "workspace" / "silofl" / "metrics_summary.json").read_text())
    reported = game.server.ledger[game.server.reported.round - 1]
    mean = sum(score.value for score in tests.scores.values()) / 3
    assert [one["value"] for one in summary["best_metrics"]] == [reported.validation_mean, pytest.approx(mean)]
