import json
import stat
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from silofl.base.errors import ConfigError
from silofl.command_line.cli import main
from silofl_hospital.site import network
from silofl_hospital.site.check_site import CHECKS, LOG, check_site, print_checkup

from ..starting import run_without_torch

NETWORK = "server,tls"


@pytest.fixture
def checked(kit, study_file, pictures, capsys):
    def run(*arguments):
        code = main(["site", "check", "--kit", str(kit), "--study", str(study_file()), *arguments])
        return code, capsys.readouterr().out

    return run


def test_a_site_with_nothing_wrong_may_join(checked, candidate, serve, federation):
    with serve(federation, candidate().kit.address.port):
        code, out = checked("--json")
    found = json.loads(out)
    assert code == 0 and found["may_join"] and found["log"] is None
    assert [check["check"] for check in found["checks"]] == list(CHECKS)
    assert {check["status"] for check in found["checks"]} == {"ok"}


def test_a_table_names_every_check_and_the_verdict(checked):
    code, out = checked("--skip", f"{NETWORK},training,leaving")
    assert code == 0 and "versions" in out
    # Who leaves checks out is told that nothing is known of them.
    verdict = " ".join(out[out.index("Site north") :].split())
    names = "server, tls, training, leaving"
    assert verdict == f"Site north may join small, as far as it was checked; not checked: {names}"


def test_a_warning_of_a_strict_check_ends_with_1(checked, monkeypatch):
    skipped = ["--skip", ",".join(set(CHECKS) - {"certificate", "versions"})]
    monkeypatch.setattr(network, "DAYS_TO_WARN", 100_000)
    assert checked(*skipped)[0] == checked(*skipped, "--strict", "versions")[0] == 0
    code, out = checked(*skipped, "--strict", "versions,certificate")
    assert code == 1 and "Site north may join small" in out
    assert out.splitlines()[-1] == "exit code 1, as --strict asks of a warning of certificate"
    code, out = checked(*skipped, "--strict", "certificate", "--json")
    assert code == 1 and json.loads(out)["may_join"]


def test_unknown_checks_and_leaving_out_all_are_refused(refused, kit, study_file, candidate):
    error = refused("site", "check", "--kit", kit, "--study", study_file(), "--strict", "certifcate")
    assert "--strict must be among" in error and "(did you mean 'certificate'?)" in error
    with pytest.raises(ConfigError, match=r"--skip must be among .*, not 'tsl' \(did you mean 'tls'\?\)"):
        check_site(candidate(), ["tsl"])
    with pytest.raises(ConfigError, match="--skip names all checks"):
        check_site(candidate(), set(CHECKS))


def test_a_narrow_window_cuts_nothing_off_the_digest(candidate):
    site, out = candidate(), StringIO()
    print_checkup(check_site(site, set(CHECKS) - {"study"}), Console(file=out, width=60))
    assert site.study.digest in out.getvalue().splitlines()


def test_a_fault_in_the_data_names_no_case(checked, kit, pictures):
    (pictures / "secret-training0.png").write_bytes(b"no picture")
    code, out = checked("--json", "--skip", NETWORK)
    assert code == 1 and "secret" not in out
    statuses = {check["check"]: check["sentence"] for check in json.loads(out)["checks"] if check["status"] == "failed"}
    assert statuses["data"] == "the site's data have a fault; check-site.txt in the kit names it"
    assert "waits for data" in statuses["training"] and "waits for data" in statuses["leaving"]
    log = Path(json.loads(out)["log"])
    assert log == kit / LOG and "secret-training0.png is truncated or corrupt" in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    # The last line names what failed and not what waits for it.
    assert checked("--skip", NETWORK)[1].splitlines()[-1] == "Site north must not join study small yet: data"


def test_an_unforeseen_error_is_an_answer_with_a_log(candidate, kit, monkeypatch):
    def fall_over(site):
        raise RuntimeError("secret-training0 is odd")

    with monkeypatch.context() as patch:
        patch.setattr("silofl_hospital.site.resources.check_disk", fall_over)
        checkup = check_site(candidate(), set(CHECKS) - {"disk", "gpu"})
    assert checkup.answers["disk"].sentence == "an unexpected RuntimeError; check-site.txt in the kit has it"
    assert checkup.answers["gpu"].status == "ok"
    assert "secret-training0 is odd" in checkup.log.read_text()
    assert check_site(candidate(), set(CHECKS) - {"gpu"}).log is None
    assert not (kit / LOG).exists()


def test_the_checks_that_build_no_model_load_no_torch(kit, study_file, pictures, tmp_path):
    light = {"versions", "folder", "firewall", "certificate"}
    skipped = ",".join(CHECKS.keys() - light)
    words = ("site", "check", "--kit", kit, "--study", study_file(), "--skip", skipped)
    code, said = run_without_torch(*words, folder=tmp_path)
    assert code in (0, 1) and "Site north" in said
