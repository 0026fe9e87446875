"""What is said of a job before it is submitted."""

import hashlib
import json
import shutil

import pytest
import yaml

from silofl.base.errors import ConfigError
from silofl.base.files import save_tensors
from silofl.base.settings import parse, read_yaml
from silofl.flare.components import name_components
from silofl.models import build_plain_model
from silofl.study import Study, load_study
from silofl_desk.flare.submission import check_job
from silofl_desk.studies.runs.simulation import study_file
from tests.conftest import JOBS

CLIENT = "app/config/config_fed_client.json"


@pytest.fixture
def said(tmp_path):
    """Return what is said of a job of jobs/ with changes to its study, besides the digest."""

    def say(name="fedavg_phantoms", change=lambda job: None, **sections):
        job = shutil.copytree(JOBS / name, tmp_path / "job")
        change(job)
        file = study_file(job)
        file.write_text(yaml.safe_dump(read_yaml(file) | sections))
        study = load_study(file)
        if "algorithm" in sections:
            name_components(file.parent, study.algorithm.name)
        digest, delivered, *others = check_job(job, study)
        assert delivered == study.recipe.delivered
        assert digest.endswith(f"have pinned this digest: {study.digest}")
        return others

    return say


@pytest.mark.parametrize("name", sorted(path.name for path in JOBS.glob("*_phantoms")))
def test_a_job_of_ours_raises_no_doubt(said, name):
    assert said(name) == []


def test_a_class_that_no_ready_made_list_has_is_named(said):
    def change(job):
        config = json.loads((job / CLIENT).read_text())
        config["components"] = [{"id": "x", "path": "acme.Widget", "args": {"path": "no.class"}}]
        (job / CLIENT).write_text(json.dumps(config))

    (warning,) = said(change=change)
    assert warning.startswith(
        "config_fed_client.json names acme.Widget, which sites refuse whose class_allow_list lacks"
    )


def test_code_and_parts_of_packages_are_named(said):
    def change(job):
        (job / "app" / "custom").mkdir()

    code, packages = said(change=change, model={"network": "acme-parts==1.2.0/slim"})
    assert "app/custom is code, which server and hospitals refuse" in code
    assert packages.endswith("extensions of site.yaml: acme-parts==1.2.0/slim")


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda job: (job / "app" / "notes.txt").write_text("mine"), "a model alone, not 'notes.txt'; delete it"),
        (lambda job: (job / CLIENT).unlink(), "has no config_fed_client.json; take it from a job"),
        (lambda job: (job / CLIENT).write_text("{"), "config_fed_client.json is broken JSON"),
        (
            lambda job: (job / "meta.json").write_text('{"job_id": "local"}'),
            "has job_id, which the server sets; remove",
        ),
    ],
)
def test_what_no_server_takes_is_refused(said, change, wrong):
    with pytest.raises(ConfigError, match=wrong):
        said(change=change)


def test_job_must_go_to_every_named_hospital(said):
    def change(*sites):
        def write(job):
            meta = json.loads((job / "meta.json").read_text())
            (job / "meta.json").write_text(json.dumps(meta | {"deploy_map": {"app": list(sites)}}))

        return write

    named = {"min_sites": 2, "sites": ["north", "south"]}
    remedy = r'leaves out south of federation.sites; write {"app": \["server", "north", "south"\]}'
    with pytest.raises(ConfigError, match=remedy):
        said(change=change("server", "north"), federation=named)


@pytest.mark.parametrize("is_settled", [False, True])
def test_unsettled_pretrained_model_is_a_doubt(said, tmp_path, is_settled):
    adafed, file = {"name": "adafed", "preset": "reference"}, tmp_path / "pretrained.pt"
    values = read_yaml(study_file(JOBS / "fedavg_phantoms")) | {"algorithm": adafed}
    save_tensors(file, build_plain_model(parse(Study, values, "study.yaml"), 0).state_dict())
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    model = values["model"] | ({"pretrained_sha256": digest} if is_settled else {})
    warnings = said(change=lambda job: shutil.copy(file, study_file(job).parent), algorithm=adafed, model=model)
    settled = f"write into study.yaml: model.pretrained_sha256: {digest}"
    assert [warning.endswith(settled) for warning in warnings] == [True] * (not is_settled)
