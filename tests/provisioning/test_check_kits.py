import json
import re
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from nvflare.lighter.utils import load_private_key

from provisioning.__main__ import main
from provisioning.check_kits import check_folders
from provisioning.supply import LOCK, read_lock
from provisioning.workspace import CUDA_LOCKS, PROJECT, REPOSITORY, SITE_LOCK, find_kits
from silofl import __version__
from silofl.base.files import read_json
from silofl.flare.kit import read_kit
from silofl.flare.policy import REPLACED, SITE_CLASSES
from tests.conftest import change_json

from .conftest import make_small_network, replace_in

JOBS, LEAD = REPOSITORY / "jobs", "lead@study.example.org"


def failures(path, jobs=JOBS, after=timedelta(0)):
    """Return what fails so long after the last certificate began."""
    now = max(kit.valid_from for kit in find_kits(path)) + after
    report = check_folders([path], jobs, now)
    found = [(finding["where"], finding["text"]) for finding in report["findings"] if finding["is_failure"]]
    assert report["is_right"] is not bool(found)
    return found


def the_only_failure(path, **options):
    ((where, text),) = failures(path, **options)
    return f"{where}: {text}"


def carry_out(sentence):
    """Run the command at the end of a sentence."""
    subprocess.run(sentence.partition(" call: ")[2], shell=True, check=True)


def printed_by_check(path, code, capsys):
    """Check a folder by the command, and return what it printed."""
    assert main(["check-kits", str(path)]) == code
    return capsys.readouterr().out


def test_kits_as_made_are_right(workspace, kits, capsys):
    lines = printed_by_check(workspace, 0, capsys).splitlines()
    assert lines[0] == "server server study: 359 days left"
    assert lines[-1] == "all is right"
    assert main(["check-kits", str(kits / "north"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (kit,) = report["kits"]
    assert (kit["name"], kit["kind"], kit["org"]) == ("north", "hospital", "north_hospital")


def test_who_may_do_what_follows_certificate_and_policies(workspace):
    now = read_kit(workspace / "silofl" / "prod_00" / "server").certificate.not_valid_before_utc
    rights = check_folders([workspace], JOBS, now)["rights"]
    everywhere = ["server", "east", "north", "south"]
    assert rights["lead@study.example.org"]["get_job_log"] == ["server"]
    assert {person: held["submit_job"] for person, held in rights.items() if held["submit_job"]} == {
        "lead@study.example.org": everywhere
    }
    assert rights["it@north.example.org"]["operate"] == ["north"]
    assert {person: held["byoc"] for person, held in rights.items() if held["byoc"]} == {}


def test_a_role_that_no_site_knows_is_found(tmp_path, wheel):
    assert make_small_network(tmp_path / "ws", wheel, role="leader") == 0
    found = the_only_failure(tmp_path / "ws")
    assert found.startswith("lead@study.example.org: the role must be one that a local/authorization.json names, ")
    assert "not 'leader' (did you mean 'lead'?); correct project.yml and make the kits anew" in found


def test_a_kit_of_another_network_is_found_twice(kits, tmp_path, wheel):
    assert make_small_network(tmp_path / "other", wheel) == 0
    shutil.rmtree(kits / "north")
    shutil.move(tmp_path / "other" / "silofl" / "prod_00" / "north", kits / "north")
    assert failures(kits) == [
        ("north", "startup/rootCA.pem must be the root certificate of the other kits; hand out a kit of this network"),
        ("north", "startup/client.crt must be signed by the root; hand out a kit of this network"),
    ]


@pytest.mark.parametrize(("days", "is_failure"), [(329, None), (331, False), (359, False), (361, True)])
def test_a_certificate_warns_for_30_days_and_fails_afterwards(kits, days, is_failure):
    kit = read_kit(kits / "north")
    report = check_folders([kit.folder], JOBS, kit.certificate.not_valid_before_utc + timedelta(days=days))
    assert [finding["is_failure"] for finding in report["findings"]] == ([] if is_failure is None else [is_failure])
    assert report["is_right"] is not bool(is_failure)


@pytest.fixture
def sign(workspace):
    """Sign a kit's certificate anew by the root's key, of the same subject and key, from then to then."""

    def write(kit, since, until):
        key = load_private_key(read_json(workspace / "silofl" / "state" / "cert.json")["root_pri_key"])
        old = kit.certificate
        names = (old.issuer, old.subject, old.public_key(), old.serial_number)
        builder = x509.CertificateBuilder(*names, since, until, list(old.extensions))
        kit.certificate_path.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))

    return write


@pytest.mark.parametrize("name", ["north", "server", "lead@study.example.org"])
def test_a_certificate_that_begins_later_is_not_right(kits, sign, capsys, name):
    # As a machine signs it whose clock is two hours ahead.
    since = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=2)
    sign(read_kit(kits / name), since, since + timedelta(days=360))
    printed = printed_by_check(kits / name, 1, capsys)
    assert f"FAILED {name}: the certificates must hold now; they are valid from {since:%Y-%m-%d %H:%M} UTC" in printed
    assert printed.count("FAILED") == 1 and printed.endswith("not all is right\n")


def test_a_root_that_ends_first_needs_new_kits(kits, sign):
    kit = read_kit(kits / "north")
    end = kit.root.not_valid_after_utc
    # Where both end in one moment, as after the last renewal, a renewal brings nothing either.
    for until in (end + timedelta(days=1), end):
        sign(kit, kit.valid_from, until)
        (found,) = check_folders([kit.folder], JOBS, end - timedelta(days=9))["findings"]
        assert found["text"].startswith("the root certificate must be valid for 30 days, not 9; make new kits for all")


def test_a_gpu_needs_a_lock_for_gpus(kits, wheel, tmp_path):
    kit, lock = kits / "north", tmp_path / "gpu.lock"
    replace_in(kit / "local" / "site.yaml", "device: cpu", "device: cuda")
    found = the_only_failure(kit)
    assert found.startswith("north: requirements.lock must install torch for a GPU, as device: cuda of local/site.yaml")
    assert "fill the kit with fill-kits --lock provisioning/cuda-3.11.lock" in found
    line = f"nvidia-cublas==13.1.0 --hash=sha256:{'0' * 64}"
    lock.write_text("\n".join(["# Written for Linux with a GPU", line]))
    assert main(["fill-kits", str(kit), "--wheel", str(wheel), "--lock", str(lock)]) == 0
    assert line in (kit / "requirements.lock").read_text()
    assert "CPU_INDEX" not in (kit / "INSTALL.md").read_text()
    assert failures(kit) == []


def test_policies_and_lock_must_be_for_one_device(kits, wheel, tmp_path, capsys):
    before = {path: path.read_bytes() for path in kits.rglob("*") if path.is_file()}
    given = ("--wheel", str(wheel), "--kind", "hospital_gpu", "--lock", str(SITE_LOCK))
    assert main(["fill-kits", str(kits / "north"), *given, "--policies"]) == 2
    assert "--lock must install torch for a GPU, as device: cuda of hospital_gpu/site.yaml" in capsys.readouterr().err
    for_gpu = ("--wheel", str(wheel), "--lock", str(CUDA_LOCKS["3.12"]))
    assert main(["fill-kits", str(kits / "north"), *for_gpu]) == 2
    assert "--lock must install torch for the CPU, as device: cpu of local/site.yaml" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in kits.rglob("*") if path.is_file()} == before
    # Before any key is made.
    for wrong in (given, for_gpu):
        assert main(["make-kits", str(PROJECT), str(tmp_path / "new"), *wrong]) == 2
        assert not (tmp_path / "new").exists()


def test_the_lock_is_that_of_the_kinds_device(kits, wheel):
    given = ("--wheel", str(wheel), "--kind", "hospital_gpu")
    assert main(["fill-kits", str(kits), *given, "--policies"]) == 0
    installed = {name: read_lock(kits / name / "requirements.lock")[2:] for name in ("north", "server")}
    # The server trains nothing.
    assert installed == {"north": read_lock(CUDA_LOCKS["3.11"]), "server": read_lock(SITE_LOCK)}
    # A later wheel comes with the lock of the device that the site has by then.
    assert main(["fill-kits", str(kits / "north"), "--wheel", str(wheel)]) == 0
    assert read_lock(kits / "north" / "requirements.lock")[2:] == installed["north"]
    assert main(["fill-kits", str(kits / "north"), *given, "--lock", str(CUDA_LOCKS["3.13"])]) == 0
    text = (kits / "north" / "INSTALL.md").read_text()
    assert "python3.13 -m venv" in text and "Python 3.13" in text and "3.11" not in text
    assert re.search(r"the software 7 GiB, of which \d\.\d GiB are downloaded", text)


def test_a_lock_of_another_wheel_is_found(kits, wheel):
    lock = kits / "north" / "requirements.lock"
    lines = lock.read_text().splitlines()
    lock.write_text("\n".join(line for line in lines if not line.startswith("silofl==")))
    assert f"requirements.lock must install {wheel.name}" in the_only_failure(kits / "north")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('"num_of_gpus": 0', '"num_of_gpus": 1', "num_of_gpus in local/resources.json gives jobs a GPU"),
        (
            '"allow_log_streaming": false',
            '"allow_log_streaming": true',
            "the site's log, which may name",
        ),
    ],
    ids=["GPUs for a torch of the CPU", "a log that leaves"],
)
def test_what_may_be_meant_is_a_warning(kits, capsys, old, new, sentence):
    replace_in(kits / "north" / "local" / "resources.json", old, new)
    assert f"warning north: {sentence}" in printed_by_check(kits / "north", 0, capsys)


@pytest.mark.parametrize("name", ["", "startup", "startup/sub_start.sh", "local/site.yaml"])
def test_what_every_account_may_write_is_found(kits, name):
    (kits / "north" / name).chmod(0o777)
    found = the_only_failure(kits / "north")
    assert found.startswith(f"north: {name or 'the kit' + chr(39) + 's folder'} must not be writable for every account")
    carry_out(found)
    assert failures(kits / "north") == []


@pytest.mark.parametrize(
    ("kit", "name"), [("north", "local/site.yaml"), ("server", "local/server.yaml"), ("north", "study.yaml")]
)
def test_settings_that_the_machine_could_not_read_are_found(kits, kit, name):
    (kits / kit / name).write_text("devise: cpu\n")
    assert all(text.startswith(Path(name).name) for _, text in failures(kits / kit)) and failures(kits / kit)


def give(role, **rights):
    """Return a change that gives a role rights at a kit's machine."""

    def change(kit):
        path = kit / "local" / "authorization.json"
        policy = json.loads(path.read_text())
        policy["permissions"][role] |= rights
        path.write_text(json.dumps(policy))

    return change


def change_resources(**values):
    return lambda kit: change_json(kit / "local" / "resources.json", **values)


def allow_too(name):
    return change_resources(class_allow_list=[*SITE_CLASSES, name])


def remove(name):
    return lambda kit: (kit / name).unlink()


def change_wheel(kit):
    next(kit.glob("*.whl")).write_bytes(b"something else")


def empty_at_restart(kit):
    replace_in(kit / "local" / "resources.json", "/var/lib/silofl/server/jobs", "/tmp/nvflare/jobs-storage")


def change_key(change):
    return lambda kit: change(kit / "startup" / "client.key", kit.parent / "south" / "startup" / "client.key")


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("north", give("lead", byoc="any"), "byoc in local/authorization.json must be for"),
        ("north", give("lead", shell_commands="any"), "shell_commands in local/authorization.json"),
        ("server", give("lead", shell_commands="o:site"), "must be for nobody from elsewhere, not for lead"),
        # As 0.3.0 had it.
        ("north", give("project_admin", submit_job="any"), "submit_job in local/authorization.json is not none for"),
        ("server", give("project_admin", clone_job="any"), "is not none for project_admin, as leads alone submit"),
        ("north", give("lead", operate="o:site"), "operate in local/authorization.json is not none for lead, who"),
        ("north", allow_too("acme.Widget"), "class_allow_list in local/resources.json must not have 'acme.Widget'"),
        ("north", allow_too("subprocess.Popen"), "names 'subprocess.Popen'"),
        ("north", change_resources(class_allow_list=["*"]), "must name the classes that may run, not '*'"),
        ("north", change_resources(class_allow_list=["silofl."]), "must name exact classes, not 'silofl.'"),
        ("north", change_resources(class_list_enforcement_mode="warn"), "must be 'enforce', not 'warn'"),
        ("north", change_resources(app_validator=None), "app_validator in local/resources"),
        (
            "north",
            lambda kit: change_json(kit / "startup" / "fed_client.json", require_signed_jobs=False),
            "signed jobs must be required",
        ),
        (
            "north",
            remove("SHA256SUMS"),
            "must have the checksum of the wheel of silofl and silofl_hospital; fill",
        ),
        (
            "north",
            lambda kit: (kit / "other-1.0-py3-none-any.whl").touch(),
            "other-1.0-py3-none-any.whl must be a wheel",
        ),
        ("north", change_wheel, f"silofl-{__version__}-py3-none-any.whl must have the checksum in SHA256SUMS"),
        ("north", remove("startup/client.key"), "startup/client.key must exist"),
        ("north", change_key(lambda key, other: shutil.copy(other, key)), "must be the key of startup/client.crt"),
        ("north", change_key(lambda key, other: key.chmod(0o640)), "client.key must be readable by its owner only"),
        (LEAD, change_wheel, "-py3-none-any.whl must have the checksum in SHA256SUMS"),
        (
            LEAD,
            remove("SHA256SUMS"),
            "the wheel of silofl and silofl_desk and silofl_hospital; fill the kit with",
        ),
        (LEAD, remove(LOCK), "requirements.lock must be there and have a version and a"),
        ("north", remove("local/privacy.json"), "local/privacy.json lacks silofl.flare.egress.RunNote"),
        ("north", remove("local/authorization.json"), "local/authorization.json must exist"),
        ("north", remove(LOCK), "requirements.lock must be there"),
        ("server", empty_at_restart, "durable folder, not /tmp/nvflare/jobs-storage"),
    ],
)
def test_open_and_volatile_kits_are_not_right(kits, name, change, sentence):
    change(kits / name)
    found = the_only_failure(kits / name)
    assert found.startswith(f"{name}: ") and sentence in found


def test_the_named_command_closes_an_open_private_key(workspace, kits):
    for key in (kits / "north" / "startup" / "client.key", workspace / "silofl" / "state" / "cert.json"):
        key.chmod(0o644)
        carry_out(the_only_failure(workspace))
        assert failures(workspace) == []


def test_foreign_stray_and_open_keys_are_found(workspace, kits):
    copy, record = kits / "north" / "transfer" / "copy.txt", workspace / "silofl" / "state" / "cert.json"
    shutil.copy(kits / "south" / "startup" / "client.key", copy)
    assert the_only_failure(workspace).startswith("north: transfer/copy.txt must not be in this kit")
    copy.unlink()
    record.chmod(0o644)
    assert "must be readable by its owner only, for it holds the root's private key" in the_only_failure(workspace)
    record.chmod(0o600)
    for place in (kits / "server" / "local" / "backup.json", workspace / "silofl" / "backup.json"):
        shutil.copy(record, place)
    (in_kit, _), (beside, text) = failures(workspace)
    assert in_kit == "server" and Path(beside).name == "backup.json"
    assert text == "must not hold a private key outside kits and state/; move it to where it belongs"


def test_a_class_that_a_job_names_must_be_allowed(kits, tmp_path):
    config = tmp_path / "jobs" / "new" / "app" / "config"
    config.mkdir(parents=True)
    (config / "config_fed_server.json").write_text(
        '{"workflows": [{"path": "silofl.flare.controller.RoundsController"}]}'
    )
    client = {"executors": [{"executor": {"path": "elsewhere.Executor", "args": {"part": {"class_path": "a.B"}}}}]}
    (config / "config_fed_client.json").write_text(json.dumps(client))
    assert failures(kits / "server", jobs=tmp_path / "jobs") == []
    named = [text.split()[5] for _, text in failures(kits / "north", jobs=tmp_path / "jobs")]
    assert named == ["a.B,", "elsewhere.Executor,"]


@pytest.mark.parametrize(
    ("replaced", "kit"), list(zip(REPLACED, ["server", "north", *["north", "server"] * 3], strict=True))
)
def test_a_component_of_nvflares_that_harms_is_found(kits, replaced, kit):
    resources, (own, _) = kits / kit / "local" / "resources.json", REPLACED[replaced]
    found = json.loads(resources.read_text())
    parts = [part for part in found["components"] if part["path"] != own]
    found |= {"allow_log_streaming": True, "components": [*parts, {"id": "log", "path": replaced, "args": {}}]}
    resources.write_text(json.dumps(found))
    failure = the_only_failure(kits / kit)
    assert f"has {replaced}, " in failure and f"put {own} there" in failure


def test_a_folder_without_kits_is_bad_input(tmp_path, capsys):
    assert main(["check-kits", str(tmp_path)]) == 2
    assert "must hold at least one startup kit" in capsys.readouterr().err
