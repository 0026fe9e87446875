"""The files for Prometheus and Grafana, against the collectors and the reporter of the installed NVFlare."""

import json
import re
from pathlib import Path

import pytest
import yaml
from nvflare.metrics.job_metrics_collector import JobMetricsCollector
from nvflare.metrics.metrics_keys import MetricKeys
from nvflare.metrics.system_metrics_collector import SysMetricsCollector

from provisioning.workspace import REPOSITORY, SITE_CONFIGS

FOLDER = REPOSITORY / "provisioning" / "monitoring"
COMPONENTS = json.loads((FOLDER / "components.json").read_text())
MAPPINGS = yaml.safe_load((FOLDER / "statsd-mapping.yml").read_text())["mappings"]
BOARD = json.loads((FOLDER / "grafana-board.json").read_text())


def emitted():
    """Return the StatsD names of all that NVFlare's collectors count and time."""
    names = set()
    for collector in (SysMetricsCollector({}), JobMetricsCollector({})):
        events = {*collector.get_single_events(), *collector.get_pair_events()}
        names |= {f"{event}_{MetricKeys.count}" for event in events}
        names |= {f"{name}_{MetricKeys.time_taken}" for name in collector.get_pair_events().values()}
    return names


def mapped(name):
    """Return the name that statsd_exporter gives a metric by the first rule that fits; None where it is dropped."""
    for rule in MAPPINGS:
        assert rule["match_type"] == "regex"
        found = re.search(rule["match"], name)
        if found:
            return None if rule.get("action") == "drop" else found.expand(rule["name"].replace("${1}", r"\1"))
    return name


def test_every_metric_of_nvflare_gets_a_name_of_its_own():
    names = [mapped(name) for name in sorted(emitted())]
    assert len({*names}) == len(names) > 50
    assert all(re.fullmatch("nvflare_[a-z][a-z_]*_(total|seconds)", name) for name in names)
    assert mapped("_client_heartbeat_received_count") == "nvflare_client_heartbeat_received_total"
    assert mapped("_task_execution_time_taken") == "nvflare_task_execution_seconds"
    # What the client counts of itself is dropped.
    assert mapped("datadog.dogstatsd.client.bytes_sent") is None


def test_the_board_asks_for_nothing_that_nvflare_does_not_emit():
    known = {mapped(name) for name in emitted()}
    asked = {name for panel in BOARD["panels"] for one in panel["targets"] for name in metrics_in(one["expr"])}
    assert asked <= known and len(asked) > 5
    assert all(metrics_in(one["expr"]) for panel in BOARD["panels"] for one in panel["targets"])


def metrics_in(expression):
    return re.findall(r"\bnvflare_\w+", expression)


def test_prometheus_asks_the_exporter_where_it_listens():
    (job,) = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    readme = (FOLDER / "README.md").read_text()
    assert job["static_configs"] == [{"targets": ["localhost:9102"]}] and "port 9102" in readme
    (reporter,) = [one["args"] for one in COMPONENTS if one["id"] == "statsd_reporter"]
    assert f"--statsd.listen-udp={reporter['host']}:{reporter['port']}" in readme


@pytest.mark.parametrize("kind", ["server", "hospital"])
def test_components_join_a_participants_under_their_own_ids(kind):
    resources = json.loads((SITE_CONFIGS / kind / "resources.json").read_text())
    ids = [one["id"] for one in [*resources["components"], *COMPONENTS]]
    assert len({*ids}) == len(ids)
    assert {one["path"] for one in COMPONENTS}.isdisjoint(resources["class_allow_list"])


def test_the_folder_holds_what_its_page_lists():
    readme = (FOLDER / "README.md").read_text()
    listed = set(re.findall(r"^\| `([^`]+)` \|", readme, re.MULTILINE))
    assert listed == {path.name for path in Path(FOLDER).iterdir()} - {"README.md"}
