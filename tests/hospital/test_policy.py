import json
import sys
from dataclasses import replace

import pytest

from silofl.base.errors import ConfigError
from silofl.flare.policy import SITE_CLASSES
from silofl.setup import extensions
from silofl_hospital.site.check_site import CHECKS, check_site
from silofl_hospital.site.policy import (
    check_brought_code,
    check_classes,
    check_egress,
    check_job_files,
    check_logs,
    check_partners,
    check_pause,
    check_pin,
    check_rights,
)
from tests.conftest import change_json

from .conftest import change_site


def write(kit, name, content):
    (kit / "local" / name).write_text(json.dumps(content))


def allow(kit, *entries, **others):
    write(kit, "resources.json", {"class_allow_list": list(entries), **others})


def test_a_hospital_that_the_study_does_not_name_fails(candidate):
    known = candidate()
    for names, status in ((["east", known.kit.name], "ok"), (["east", "west"], "failed")):
        federation = known.study.federation.model_copy(update={"sites": tuple(names)})
        answer = check_pin(replace(known, study=known.study.model_copy(update={"federation": federation})))
        assert answer.status == status
    assert f"must name this hospital, {known.kit.name}, not only east, west; ask the study lead" in answer.sentence


def test_the_digest_is_shown_and_compared_with_the_pin(candidate, kit):
    named = {"federation": {"sites": [candidate().kit.name, "another"], "min_sites": 2}}
    answer, digest = check_pin(candidate(**named)), candidate(**named).study.digest
    assert answer.status == "ok" and answer.facts == {"sha256": digest} and digest in answer.sentence
    change_site(kit, studies={"small": {"sha256": digest, "lead": "lead@example.org"}})
    assert "pinned, for lead lead@example.org" in check_pin(candidate(**named)).sentence
    edited = check_pin(candidate(rounds=5, **named))
    assert edited.status == "failed" and "differs from the one that the site has pinned" in edited.sentence
    other = check_pin(candidate(name="other"))
    # What the site can do, and not what the study lead is told.
    assert other.status == "failed" and other.sentence.endswith("and write it under studies in site.yaml")
    assert "ask it to pin" not in other.sentence


@pytest.mark.parametrize(
    ("names", "status", "words"),
    [
        (["other", "small"], "warning", "study small is paused in site.yaml"),
        (["other"], "ok", "is not paused"),
    ],
)
def test_a_pause_is_a_warning(candidate, kit, names, status, words):
    change_site(kit, paused=names)
    answer = check_pause(candidate())
    assert answer.status == status and words in answer.sentence


def test_min_partners_is_compared_with_the_studys_sites(candidate, kit):
    answer = check_partners(candidate())
    assert answer.status == "ok" and "with those of at least 1 other site, or not at all" in answer.sentence
    change_site(kit, min_partners=3)
    assert "at least 3 other sites" in check_partners(candidate()).sentence
    answer = check_partners(candidate(federation={"sites": 3}))
    assert answer.status == "failed" and "less than the study's 3 sites" in answer.sentence
    change_site(kit, min_partners=0)
    answer = check_partners(candidate())
    assert answer.status == "warning" and "a model of this site's patients alone" in answer.sentence
    alone = check_partners(candidate(algorithm={"name": "local"}))
    assert alone.status == "ok" and "nothing of this study is mixed" in alone.sentence


def test_the_very_classes_are_right_and_nvflares_default_fails(candidate, kit):
    assert check_classes(candidate()).status == "ok"
    allow(kit, *SITE_CLASSES)
    assert check_classes(candidate()).status == "ok"
    (kit / "local" / "resources.json").unlink()
    answer = check_classes(candidate())
    assert answer.status == "failed" and "lacks silofl.flare.executor.SiteExecutor, silofl" in answer.sentence


LAUNCHERS = """
nvflare.app_common.launchers.subprocess_launcher.SubprocessLauncher
nvflare.app_common.executors.client_api_executor.ClientAPIExecutor
nvflare.app_opt.pt.multi_process_executor.PTMultiProcessExecutor
nvflare.app_opt.confidential_computing.tdx_authorizer.TDXAuthorizer subprocess.Popen os.system runpy.run_path
""".split()
WIDE = "silofl. silofl.flare silofl_desk.studies.runs.processes nvflare.app_common. *".split()


@pytest.mark.parametrize(
    ("entries", "others", "sentence"),
    [
        *(([entry], {}, f"names {entry!r}, by which a job starts any program") for entry in LAUNCHERS),
        *(([entry], {}, f"not {entry!r}, which lets") for entry in WIDE),
        *(
            ([], {"class_list_enforcement_mode": mode}, f"must be 'enforce', not {mode!r}")
            for mode in ("warn", "sometimes")
        ),
        # Nor does one let anything in that is no list.
        (None, {"class_allow_list": SITE_CLASSES[0]}, ""),
    ],
)
def test_a_list_that_lets_in_programs_fails(candidate, kit, entries, others, sentence):
    write(kit, "resources.json", {"class_allow_list": [*SITE_CLASSES, *(entries or [])], **others})
    answer = check_classes(candidate())
    assert answer.status == "failed" and sentence in answer.sentence


@pytest.mark.parametrize("validator", [None, "silofl.flare.job_files.JobFiles", {"path": "other.Validator"}])
def test_a_site_that_lets_in_any_file_fails(candidate, kit, validator):
    assert check_job_files(candidate()).status == "ok"
    change_json(kit / "local" / "resources.json", app_validator=validator)
    answer = check_job_files(candidate())
    assert answer.status == "failed" and "app_validator in local/resources.json must be silofl" in answer.sentence


def test_roles_that_may_bring_code_are_named(candidate, kit):
    assert check_brought_code(candidate()).status == "ok"
    (kit / "local" / "authorization.json").unlink()
    answer = check_brought_code(candidate())
    # NVFlare's default: the project admin may do anything, a lead may bring code, an org admin may not.
    assert (answer.status, answer.facts["roles"]) == ("failed", ["lead", "project_admin"])
    # A site may trust its own people with code, but nobody else's.
    for right, status in {"o:site": "warning", "any": "failed", "none": "ok"}.items():
        policy = {"permissions": {"lead": {"byoc": right}}}
        write(kit, "authorization.json", {"format_version": "1.0", **policy})
        assert check_brought_code(candidate()).status == status
    write(kit, "authorization.json", policy)
    with pytest.raises(ConfigError, match=r"local/authorization.json of 'north' is no policy: .*format_version"):
        check_brought_code(candidate())


def test_a_right_of_an_earlier_release_fails(candidate, kit):
    assert check_rights(candidate()).status == "ok"
    for role, right in (("project_admin", "submit_job"), ("project_admin", "clone_job"), ("lead", "operate")):
        write(kit, "authorization.json", {"format_version": "1.0", "permissions": {role: {right: "any"}}})
        answer = check_rights(candidate())
        assert answer.status == "failed" and answer.sentence.startswith(
            f"{right} in local/authorization.json is not none for {role}, "
        )
        write(kit, "authorization.json", {"format_version": "1.0", "permissions": {role: {right: "none"}}})
        assert check_rights(candidate()).status == "ok"


# --- the filters of privacy.json


def scope(results, tasks=("silofl.flare.egress.RunNote",), name="silofl"):
    chains = {"task_data_filters": tasks, "task_result_filters": results}
    return {"name": name} | {chain: [{"path": path} for path in paths] for chain, paths in chains.items()}


EGRESS = "silofl.flare.egress.Egress"
GOOD = scope([EGRESS])


def default(*scopes, name="silofl"):
    return json.dumps({"format_version": "1.0", "scopes": scopes} | ({"default_scope": name} if name else {}))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "local/privacy.json is missing"),
        ("{", "NVFlare cannot read"),
        (default(scope([])), "Egress as the last of task_result_filters"),
        (default(scope([EGRESS], [])), "lacks silofl.flare.egress.RunNote"),
        (default(scope([EGRESS, "silofl.flare.filters.BatchNormStaysHome"])), "Egress as the last"),
        # Sound, but no job that names no scope gets it.
        (default(GOOD, name=None), "in the scope that jobs get"),
        (default(scope([], name="other"), GOOD, name="other"), "in the scope that jobs get"),
        (default(GOOD, name="nowhere"), "specified default scope 'nowhere' does not exist"),
        (default(scope(["no.such.Filter"])), "NVFlare cannot read"),
        (default(scope(["silofl.flare.egress.Egres"])), "Egres"),
    ],
)
def test_a_site_whose_answers_would_leave_unrecorded_may_not_join(candidate, kit, content, sentence, caplog, capfd):
    path = kit / "local" / "privacy.json"
    path.write_text(content) if content else path.unlink()
    checkup = check_site(candidate(), skipped=CHECKS.keys() - {"egress", "leaving"})
    answer = checkup.answers["egress"]
    assert answer.status == "failed" and sentence in answer.sentence and not checkup.may_join
    assert "Traceback" not in caplog.text + "".join(capfd.readouterr())
    assert "leaving waits for egress" in checkup.answers["leaving"].sentence


@pytest.mark.parametrize(("value", "status"), [(False, "ok"), (True, "warning"), (None, "warning")])
def test_a_log_that_may_leave_is_a_warning(candidate, kit, value, status):
    path = kit / "local" / "resources.json"
    resources = json.loads(path.read_text())
    del resources["allow_log_streaming"]
    resources["components"] = [part for part in resources["components"] if part["id"] != "site_log_streamer"]
    path.write_text(json.dumps(resources | ({} if value is None else {"allow_log_streaming": value})))
    answer = check_logs(candidate())
    assert answer.status == status and "allow_log_streaming" in answer.sentence


def test_a_key_that_others_may_read_fails(candidate, kit):
    (kit / "startup" / "client.key").chmod(0o644)
    answer = check_site(candidate(), set(CHECKS) - {"certificate"}).answers["certificate"]
    assert answer.status == "failed"
    assert answer.sentence.startswith("other accounts can read startup/client.key")


def test_a_second_scope_that_lets_answers_out_unrecorded_is_named(candidate, kit):
    # The filters of the hospital's kits are sound.
    assert check_egress(candidate()).status == "ok"
    open_scope = scope([], name="open")
    (kit / "local" / "privacy.json").write_text(default(GOOD, scope([EGRESS], name="also"), open_scope))
    answer = check_egress(candidate())
    assert (answer.status, answer.facts["scopes"]) == ("warning", ["open"])
    assert "leaves the filters of SiloFL out of 'open'" in answer.sentence


# --- parts of packages


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Install a package in some version, whose import would end the tests."""
    info = tmp_path / "site-packages" / "acme_parts-1.2.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-parts\nVersion: 1.2.0\n")
    (info / "entry_points.txt").write_text(
        "[silofl.losses]\nbrier = acme_parts:brier\n[silofl.metrics]\noverlap = acme_parts:overlap\n"
    )
    (info.parent / "acme_parts.py").write_text("raise SystemExit('code ran')")
    monkeypatch.syspath_prepend(str(info.parent))
    yield
    extensions.allow_extensions(None)


def test_a_package_that_is_absent_or_not_allowed_fails(candidate, kit, package):
    study, skipped = {"loss": "acme-parts==1.3.0/brier"}, CHECKS.keys() - {"packages", "data"}
    for allowed, sentence in (
        ([], "is not allowed on this machine; review its package"),
        (["acme-parts==1.3.0/brier"], "but 1.2.0 is installed; install the wheel"),
    ):
        change_site(kit, extensions=allowed)
        checkup = check_site(candidate(training=study), skipped)
        answer = checkup.answers["packages"]
        assert answer.status == "failed" and sentence in answer.sentence and not checkup.may_join
        assert "data waits for packages, which failed" in checkup.answers["data"].sentence
    assert "acme_parts" not in sys.modules
