"""Parts of other packages; the example is that of docs/extensions.md, installed as pip would install it."""

import re
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from silofl.base.errors import ConfigError, ExtensionError
from silofl.base.settings import load_settings, parse
from silofl.data.parts import Examples
from silofl.data.transforms import build_augmentation, check_transforms
from silofl.federation.site import SiteRounds
from silofl.models import build_plain_model
from silofl.parts.answer import public_reason
from silofl.setup import extensions
from silofl.setup.site import Server, Site
from silofl.training.evaluation import score_predictions, summarise_test
from silofl.training.extra_metrics import check_extra_metrics, measure_extra_metric
from silofl.training.losses import check_loss, make_loss
from silofl_desk.studies.runs import simulate
from silofl_desk.studies.runs.simulation import Simulation

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("slim", "brier", "shade", "overlap")
NETWORK, LOSS, SHADE, OVERLAP = (f"acme-parts==1.2.0/{name}" for name in PARTS)
# Each names one part; with it the study is as small as `make_study` makes it.
NAMING = {
    "model.network": {"model": {"network": NETWORK}},
    "training.loss": {"training": {"loss": LOSS}},
    "data.transforms": {"data": {"transforms": [{SHADE: {}}]}},
    "data.augment": {"data": {"augment": [{SHADE: {"strength": 0.1}}]}},
    "extra_metrics": {"extra_metrics": [OVERLAP]},
}
# Each imports the part, if nothing keeps it from that.
USES = {
    "model.network": lambda study: build_plain_model(study, 0),
    "training.loss": make_loss,
    "data.transforms": check_transforms,
    "data.augment": build_augmentation,
    "extra_metrics": lambda study: extensions.load_extension(*study.extensions[0]),
}


def block(name):
    """Return the text of a file that docs/extensions.md shows."""
    text = (ROOT / "docs" / "extensions.md").read_text()
    return re.search(rf"```\w+\n# {re.escape(name)}\n(.*?)```", text, re.DOTALL)[1]


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    monkeypatch.delenv(extensions.VARIABLE, raising=False)
    extensions.allow_extensions(None)
    sys.modules.pop("acme_parts", None)
    yield
    extensions.allow_extensions(None)
    sys.modules.pop("acme_parts", None)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install the example, as pip does: the module, and a dist-info folder with what pyproject.toml says."""

    def write(version=None, module=None):
        project = tomllib.loads(block("pyproject.toml"))["project"]
        site = tmp_path / "site-packages"
        info = site / f"acme_parts-{version or project['version']}.dist-info"
        info.mkdir(parents=True)
        metadata = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version or project['version']}\n"
        (info / "METADATA").write_text(metadata)
        groups = project["entry-points"].items()
        lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in names.items()) for group, names in groups]
        (info / "entry_points.txt").write_text("\n".join(lines))
        (site / "acme_parts.py").write_text(module or block("acme_parts.py"))
        monkeypatch.syspath_prepend(str(site))

    return write


@pytest.fixture
def naming(make_study):
    """Return a study that names a part under a key."""

    def make(key):
        values = make_study().model_dump(mode="json", exclude_none=True)
        values["data"]["augment"], values["model"] = [], {"normalization": "batch"}
        for section, changes in NAMING[key].items():
            values[section] = changes if isinstance(changes, list) else values[section] | changes
        return parse(type(make_study()), values, "study.yaml")

    return make


def is_imported():
    return "acme_parts" in sys.modules


# --- attacks


@pytest.mark.parametrize("key", NAMING)
def test_what_is_installed_but_not_allowed_is_never_imported(install, naming, key, site_data, tmp_path):
    install(module="raise SystemExit('code ran')")
    study = naming(key)
    for use in (
        USES[key],
        # Of a simulation nobody's data are looked for.
        lambda study: simulate.read_data(study, Simulation(str(tmp_path / "none"), ("east",)), tmp_path / "run"),
    ):
        with pytest.raises(ExtensionError, match=f"{key}: .* is not allowed on this machine"):
            use(study)
    # Of one part that is allowed, the others do not follow.
    other = {NETWORK, LOSS, SHADE, OVERLAP} - {name for *_, name in study.extensions}
    site = Site(data=f"{site_data}/{{site}}", state_dir=f"{tmp_path}/{{site}}", extensions=sorted(other))
    with pytest.raises(ExtensionError, match="review its package, install it, and add this name") as refusal:
        SiteRounds("east", study, site)
    assert key in public_reason(refusal.value), "the server is told what is missing"
    with pytest.raises(ExtensionError, match="is not allowed on this machine"):
        USES[key](study)
    assert not is_imported() and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "name", ["os:system", "os.system", "acme_parts:slim", "acme_parts.slim", "acme-parts/slim", "acme-parts==1.2.0/a:b"]
)
def test_a_dotted_path_is_no_part_of_a_package(install, monkeypatch, name):
    install()
    monkeypatch.setenv(extensions.VARIABLE, name)
    with pytest.raises(ExtensionError):
        extensions.load_extension("model.network", extensions.NETWORKS, name)
    with pytest.raises(ConfigError, match="extensions.0 must be a part of a package"):
        parse(Site, {"data": "/d", "state_dir": "/s", "extensions": [name]}, "site.yaml")
    assert not is_imported()


@pytest.mark.parametrize(
    ("version", "name", "group", "sentence"),
    [
        (None, "acme-parts==1.2.0/hidden", extensions.NETWORKS, "announces in silofl.networks, among slim, not 'hidd"),
        # A network is no loss.
        (None, NETWORK, extensions.LOSSES, "announces in silofl.losses, among brier, not 'slim'"),
        ("1.2.1", NETWORK, extensions.NETWORKS, "needs package 'acme-parts' in version 1.2.0, but 1.2.1"),
        (None, "nowhere==1.0/net", extensions.NETWORKS, "needs package 'nowhere' in version 1.0, but none"),
    ],
)
def test_what_is_not_announced_in_that_version_is_never_imported(install, version, name, group, sentence):
    install(version=version, module="def hidden(): pass")
    extensions.allow_extensions((name,))
    with pytest.raises(ExtensionError, match=sentence):
        extensions.load_extension("model.network", group, name)
    assert not is_imported()


def test_a_machines_own_settings_take_the_place_of_the_variable(install, monkeypatch):
    install()
    monkeypatch.setenv(extensions.VARIABLE, NETWORK)
    assert extensions.list_allowed_extensions() == (NETWORK,)
    extensions.allow_extensions(())
    with pytest.raises(ExtensionError, match="is not allowed on this machine"):
        extensions.load_extension("model.network", extensions.NETWORKS, NETWORK)


@pytest.mark.parametrize("kind", ["hospital", "hospital_gpu", "research_lab", "server"])
def test_the_ready_made_settings_allow_none(kind):
    file = ROOT / "site_configs" / kind / ("server.yaml" if kind == "server" else "site.yaml")
    assert load_settings(Server if kind == "server" else Site, file).extensions == ()


# --- use


@pytest.mark.parametrize("key", NAMING)
def test_what_is_allowed_runs(install, naming, key):
    install()
    study = naming(key)
    extensions.allow_extensions(name for *_, name in study.extensions)
    USES[key](study)
    assert is_imported()


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("1 / 0", "model.network: the import of .* fails with ZeroDivisionError"),
        ("def slim(*_): raise ValueError('no width')", "cannot be built with model.arguments: no w"),
        ("def slim(*_): return 3", "returns int instead of a torch module"),
        ("from torch import nn\ndef slim(*_): return nn.Conv2d(1, 1, 1)", "normalization must be instance or group"),
    ],
)
def test_a_network_that_cannot_be_built_is_a_sentence(install, naming, module, message):
    install(module=module)
    extensions.allow_extensions((NETWORK,))
    with pytest.raises((ExtensionError, ConfigError), match=message):
        build_plain_model(naming("model.network"), 0)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            "def brier(logits, targets): raise ValueError('two labels')",
            "of this study: two labels; repair its",
        ),
        ("def brier(logits, targets): return logits", "grad can be implicitly created only for scalar"),
        ("def brier(logits, targets): return 0.5", "has no attribute 'backward'"),
        ("def brier(logits): return logits.sum()", "takes 1 positional argument but 2 were given"),
    ],
)
def test_a_loss_without_a_number_is_refused_before_training(install, naming, module, message):
    install(module=module)
    extensions.allow_extensions((LOSS,))
    with pytest.raises(
        ConfigError, match=rf"training.loss {LOSS} gave no single number .* logits \(2, 1, 24, 20\) .*{message}"
    ):
        check_loss(naming("training.loss"), (1, 24, 20))


def test_a_transform_that_changes_the_size_is_refused(install, naming):
    install(module="from monai.transforms import Resized\ndef shade(keys, **_): return Resized(keys, (8, 8))")
    extensions.allow_extensions((SHADE,))
    for key in ("data.transforms", "data.augment"):
        with pytest.raises(ConfigError, match=r"image's size from \(64, 64\) to \(8, 8\)"):
            check_transforms(naming(key))


def measure(prediction, truth, cases="ab", regions=((1,),)):
    return measure_extra_metric(OVERLAP, np.asarray(prediction), np.asarray(truth), tuple(cases), regions)


def test_the_examples_metric_is_the_mean_over_regions_and_cases(install):
    install()
    extensions.allow_extensions((OVERLAP,))
    # a: 1 / 3 of label 1, 1 / 1 of label 2; b: 1 / 2 of label 1, no label 2; c has none at all.
    truth, prediction = [[[1, 1, 0, 2]], [[1, 1, 0, 0]], [[0] * 4]], [[[0, 1, 1, 2]], [[1, 0, 0, 0]], [[0] * 4]]
    found = measure(prediction, truth, "abc", [(1,), (2,)])
    assert found == {"value": pytest.approx(((1 / 3 + 1) / 2 + 1 / 2) / 2), "num_cases": 2}
    assert measure([[[0]]], [[[0]]], "a") == {"value": None, "num_cases": 0}
    # Nothing that the site annotates is scored.
    assert measure(prediction, truth, "abc", []) == {"value": None, "num_cases": 0}


SEES = "def overlap(prediction, truth): return {} and prediction.dtype == truth.dtype == bool"


@pytest.mark.parametrize(("shape", "cases", "seen"), [((3, 4, 4), "aaa", "(3, 4, 4)"), ((3, 4, 4), "abc", "(1, 4, 4)")])
def test_a_metric_is_given_all_slices_of_a_case(install, shape, cases, seen):
    install(module=SEES.format(f"prediction.shape == truth.shape == {seen}"))
    extensions.allow_extensions((OVERLAP,))
    assert measure(np.ones(shape, np.uint8), np.ones(shape, np.uint8), cases)["value"] == 1


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("def overlap(prediction, truth): return 1.5", "at case 'b': 1.5 is out of range; this test has no"),
        ("def overlap(prediction, truth): return -0.5", "-0.5 is out of range"),
        ("def overlap(prediction, truth): return float('nan')", "nan is out of range"),
        ("def overlap(prediction, truth): return 'good'", "'<=' not supported between"),
        ("def overlap(prediction, truth): raise ValueError('no\\nspacing')", "at case 'b': no spacing; this"),
        ("def overlap(prediction): return 1", "takes 1 positional argument but 2 were given"),
        ("1 / 0", "at its import: extra_metrics: the import of .* ZeroDivisionError"),
    ],
)
def test_a_metric_that_fails_costs_itself_only(install, make_study, caplog, module, reason):
    install(module=module)
    extensions.allow_extensions((OVERLAP,))
    study, truth = make_study().model_copy(update={"extra_metrics": (OVERLAP,)}), np.ones((1, 4, 4), np.uint8)
    part = Examples(truth[:, None].astype(np.float32), truth, ("b",), (None,), ("p",))
    found = summarise_test(truth, score_predictions(truth, part, study), part, study)
    # Its words may name a case: they stay in the log.
    assert found["extra_metrics"] == {OVERLAP: {"value": None, "num_cases": 0, "has_failed": True}}
    assert (found["value"], found["surface"]["hd95"]) == (1, 0)
    (record,) = caplog.records
    assert re.search(f"extra_metrics {OVERLAP} gave no number .*{reason}", record.getMessage())
    assert "\n" not in record.getMessage() and record.exc_info is None


@pytest.mark.parametrize("size", [(24, 20), (12, 10, 8)])
@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("1 / 0", "the import of .* fails with ZeroDivisionError"),
        ("def overlap(prediction, truth): return 1.5", "gave no number .* 1.5 is out of range; repair its"),
    ],
)
def test_a_metric_without_a_number_is_refused_before_training(install, naming, size, module, message):
    install(module=module)
    extensions.allow_extensions((OVERLAP,))
    with pytest.raises((ExtensionError, ConfigError), match=f"extra_metrics.*{message}"):
        check_extra_metrics(naming("extra_metrics"), (1, *size))


def test_a_metric_gets_no_label_that_is_not_annotated(install, make_study):
    install()
    extensions.allow_extensions((OVERLAP,))
    changes = {"labels": {1: "organ", 2: "lesion"}, "extra_metrics": (OVERLAP,)}
    study = make_study().model_copy(update=changes)
    truth, prediction = np.uint8([[[1, 0], [0, 0]]]), np.uint8([[[1, 2], [0, 0]]])
    part = Examples(truth[:, None].astype(np.float32), truth, ("a",), (None,), ("p",), annotated=(1,))
    for annotated, value in (((1,), 1), (None, 0.5)):
        shown = replace(part, annotated=annotated)
        found = summarise_test(prediction, score_predictions(prediction, shown, study), shown, study)
        assert found["extra_metrics"][OVERLAP]["value"] == value


def test_a_study_is_settled_by_the_versions_of_its_parts(make_study):
    study = make_study(training={"loss": LOSS})
    assert study.digest != make_study(training={"loss": "acme-parts==1.2.1/brier"}).digest
    assert study.extensions == [("training.loss", "silofl.losses", LOSS)] and make_study().extensions == []
