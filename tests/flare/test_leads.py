"""Leads apart: a run is its submitter's, and a site takes part in the studies that it has pinned."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FilterKey, FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal
from nvflare.apis.workspace import Workspace
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.lighter.utils import Identity, generate_cert, generate_keys, serialize_cert, sign_folders

from silofl.base.files import write_json
from silofl.base.schema import dump_record
from silofl.federation.outcome import unscored_results
from silofl.federation.results import read_results
from silofl.flare import controller as module
from silofl.flare.controller import RoundsController
from silofl.flare.egress import Egress, RunNote
from silofl.flare.exchange import from_model, to_model
from silofl.flare.executor import SiteExecutor
from silofl.inference.directory import plain_study
from silofl.parts.task import Message
from silofl.setup.site import Server

LEAD, OTHER = "lead@study.example.org", "other@study.example.org"
NOT_YOURS = "continue_run must name a run that its own lead began and this server keeps, not 'first'"


@pytest.fixture
def submit(tmp_path, make_study, monkeypatch):
    """Submit a job that is aborted before its first round; returns what its lead can download and NVFlare's panics."""

    def run(lead, run_dir="runs/{study}/{run}", **changes):
        study, panics = make_study().model_copy(update=changes), []
        target = tmp_path / f"download-{len(list(tmp_path.glob('download-*')))}"
        monkeypatch.setattr(module, "read_job_study", lambda context: study)
        monkeypatch.setattr(module, "read_job_pretrained", lambda context, study: None)
        monkeypatch.setattr(module, "read_server_settings", lambda context: Server(run_dir=f"{tmp_path}/{run_dir}"))
        monkeypatch.setattr(module, "download_folder", lambda context: target)
        controller = RoundsController()
        controller.fl_ctx, controller.communicator = FLContext(), SimpleNamespace()
        meta = {} if lead is None else {"submitter_name": lead}
        controller.fl_ctx.set_prop(FLContextKey.JOB_META, meta, private=True, sticky=False)
        controller.fl_ctx.set_prop(FLContextKey.RUNNER, SimpleNamespace(), private=True, sticky=True)
        controller.engine = SimpleNamespace(get_clients=lambda: [], register_app_command=lambda *command: None)
        controller._wait_for_sites = lambda study: ["east", "west"]
        controller._course = lambda server, folder: SimpleNamespace(run=lambda: folder.save(server))
        controller.system_panic = lambda reason, context: panics.append(reason)
        controller.run()
        return json.loads((target / "results.json").read_text())["reasons"], panics

    return run


def files_of(root):
    return {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def first(submit, tmp_path):
    """A run of the first lead at the server, called ``first``; returns the folder of all runs."""
    submit(LEAD)
    (run,) = (tmp_path / "runs" / "small").iterdir()
    run.rename(run.with_name("first"))
    return tmp_path / "runs"


def test_lead_continues_own_run_or_gets_complete_one(first, submit, make_study, tmp_path):
    reasons, panics = submit(LEAD, continue_run="first")
    assert panics == [] and "the job was aborted after round 0 of 3" in reasons[0]
    done = replace(unscored_results(make_study(), "FAILED", run="first"), status="COMPLETE")
    write_json(first / "small" / "first" / "results.json", dump_record(done))
    before = files_of(first)
    assert submit(LEAD, continue_run="first") == ([], [])
    assert read_results(tmp_path / "download-2").status == "COMPLETE" and files_of(first) == before
    # One round more than it has.
    assert "the job was aborted after round 0 of 4" in submit(LEAD, continue_run="first", rounds=4)[0][0]


@pytest.mark.parametrize("lead", [OTHER, None])
def test_another_leads_run_seems_not_to_exist(first, submit, lead, tmp_path):
    before = files_of(first)
    reasons, panics = submit(lead, continue_run="first")
    assert reasons == panics and reasons[0].startswith(NOT_YOURS) and LEAD not in reasons[0]
    other, _ = submit(lead, continue_run="second")
    assert other[0].startswith(NOT_YOURS.replace("first", "second")) and files_of(first) == before
    assert [path.name for path in (tmp_path / "download-1").iterdir()] == ["results.json"]


def test_a_run_without_a_recorded_lead_is_nobodys(first, submit):
    (first / "small" / "first" / "lead.json").unlink()
    assert submit(LEAD, continue_run="first")[1] != []


# --- at a site


class Person:
    """A person with a key and a certificate of a network's root."""

    def __init__(self, root, name):
        self.key, public = generate_keys()
        self.certificate = generate_cert(Identity(name, "study", "lead"), root.identity, root.key, public)


class Root:
    """The root of a network."""

    def __init__(self):
        self.identity, (self.key, public) = Identity("root", "study"), generate_keys()
        self.certificate = generate_cert(self.identity, self.identity, self.key, public, ca=True)


@pytest.fixture(scope="module")
def root():
    return Root()


def sign(kit, root, folder, person):
    """Sign a folder as a person, and put the network's root into a kit."""
    (kit / "startup").mkdir()
    (kit / "startup" / "rootCA.pem").write_bytes(serialize_cert(root.certificate))
    if person:
        (kit / "own.crt").write_bytes(serialize_cert(person.certificate))
        sign_folders(str(folder), person.key, str(kit / "own.crt"))


NAMED = {"federation": {"sites": ["north", "south"], "min_sites": 2}}


@pytest.fixture
def begin(tmp_path, make_study, root):
    """Deploy a study at a site with some pins and ask for its first round; returns the site's reason."""

    def run(pins, submitter=LEAD, signer=LEAD, signed_by=None, server=None, study=None, targets=None, **changes):
        study = (study or make_study(**NAMED)).model_copy(update=changes)
        config = tmp_path / "job" / "app_north" / "config"
        for folder in (config, tmp_path / "local"):
            folder.mkdir(parents=True)
        (config / "study.yaml").write_text(yaml.safe_dump(plain_study(study)))
        sign(tmp_path, root, config.parent, signer and Person(signed_by or root, signer))
        site = {"data": f"{tmp_path}/none", "state_dir": f"{tmp_path}/state"} | ({"studies": pins} if pins else {})
        (tmp_path / "local" / "site.yaml").write_text(yaml.safe_dump(site))
        fl_ctx, filters = FLContext(), {"task_data_filters": {FilterKey.IN: [RunNote()]}}
        filters |= {"task_result_filters": {FilterKey.OUT: [Egress()]}}
        props = {FLContextKey.SCOPE_OBJECT: SimpleNamespace(**filters)}
        meta = {"submitter_name": submitter} | ({"deploy_map": {"app": targets}} if targets else {})
        props |= {FLContextKey.JOB_META: meta, FLContextKey.RUNNER: SimpleNamespace()}
        for key, value in props.items():
            fl_ctx.set_prop(key, value, private=True, sticky=False)
        fl_ctx.get_engine = lambda: SimpleNamespace(get_workspace=lambda: Workspace(str(tmp_path), "north"))
        fl_ctx.get_job_id, fl_ctx.get_identity_name = lambda: "job", lambda: "north"
        executor = SiteExecutor()
        executor.handle_event(EventType.START_RUN, fl_ctx)
        meta = {"run": "small-1", "round": 1, "held": 0, "sites": 2, "digest": (server or study).digest}
        task = FLModelUtils.to_shareable(to_model(Message({"model/a": np.ones(2)}, meta), is_difference=False))
        return from_model(FLModelUtils.from_shareable(executor.execute("train", task, fl_ctx, Signal()))).meta["error"]

    return run


def pin(make_study, lead=LEAD, **changes):
    return {"small": {"sha256": make_study(**NAMED).model_copy(update=changes).digest, "lead": lead}}


# The data of this site do not exist: a study that gets so far has been let in.
LET_IN = "the site's data have a fault"


@pytest.mark.parametrize("changes", [None, {}, {"continue_run": "small-1"}])
def test_site_joins_pinned_study_of_pinned_lead(begin, make_study, changes):
    assert LET_IN in (begin(None) if changes is None else begin(pin(make_study), **changes))


@pytest.mark.parametrize("has_pins", [True, False])
def test_a_study_that_the_server_has_otherwise_is_refused(begin, make_study, has_pins):
    """A job can give the server one app and its sites another, by ``deploy_map``: here one that waits for fewer."""
    agreed, fewer = make_study(**NAMED), {"federation": NAMED["federation"] | {"min_sites": 1}}
    reason = begin(pin(make_study) if has_pins else None, server=make_study(**fewer))
    assert reason.startswith("study 'small' differs at the server and at site 'north', where its digest is ")
    assert agreed.digest in reason


def test_a_study_that_is_not_pinned_is_refused(begin, make_study):
    assert begin({"other": pin(make_study)["small"]}).startswith("study 'small' is not pinned by the site")


def test_a_pinned_study_must_name_its_hospitals(begin, make_study):
    anybody = make_study()
    reason = begin({"small": {"sha256": anybody.digest, "lead": LEAD}}, study=anybody)
    assert reason.startswith("study 'small' does not name its hospitals in federation.sites")


@pytest.mark.parametrize(
    ("targets", "may_miss", "is_let_in"),
    [
        (["server", "north", "south", "west"], 0, True),
        (["@ALL"], 0, True),
        ([{"sites": ["north", "south", "west"]}], 0, True),
        (["server", "north", "south"], 0, False),
        (["server", "north", "south"], 1, True),
        (["server", "north"], 1, False),
    ],
)
def test_pinned_study_goes_to_all_but_the_allowed_missing(begin, make_study, targets, may_miss, is_let_in):
    study = make_study(federation={"sites": ["north", "south", "west"], "min_sites": 2, "may_miss": may_miss})
    reason = begin({"small": {"sha256": study.digest, "lead": LEAD}}, study=study, targets=targets)
    assert (LET_IN in reason) == is_let_in
    assert is_let_in or reason.startswith("deploy_map of the job leaves out ")


def test_an_edited_study_is_refused_with_its_digest(begin, make_study):
    edited = make_study(**NAMED).model_copy(update={"rounds": 4}).digest
    reason = begin(pin(make_study), rounds=4)
    assert reason.startswith("study 'small' differs from the one that the site has pinned") and edited in reason


@pytest.mark.parametrize(
    ("submitter", "signer", "has_other_root"),
    [(OTHER, OTHER, False), (OTHER, LEAD, False), (LEAD, OTHER, False), (LEAD, None, False), (LEAD, LEAD, True)],
    ids=["another lead", "a signed job of the lead", "a server that lies", "unsigned", "another root"],
)
def test_the_pinned_study_from_anybody_else_is_refused(begin, make_study, submitter, signer, has_other_root):
    reason = begin(pin(make_study), submitter, signer, Root() if has_other_root else None)
    assert reason.startswith("study 'small' was submitted or signed by")
