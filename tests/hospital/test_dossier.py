import json

import numpy as np
import pytest

from provisioning.check_dossier import check_dossier
from silofl.federation.egress import Gate, Request
from silofl.federation.egress_log import EgressLog
from silofl.models import build_plain_model
from silofl.parts.task import Message
from silofl_hospital.site.candidate import read_candidate

from .conftest import change_site

RUN = "small-20260102-030405-0a1f"


@pytest.fixture
def site(kit, pictures, study_file):
    """A site that took part in three rounds, two of them mixed with two others."""
    change_site(kit, min_partners=1, max_epsilon=8)
    (kit / "log.txt").write_text("secret-training0\n")
    candidate = read_candidate(kit, study_file(), None)
    folder, gate = candidate.state_folder / RUN, Gate.of(candidate.study, candidate.settings)
    log, network = EgressLog(folder), build_plain_model(candidate.study, 0)
    name = next(name for name, _ in network.named_parameters())
    for number, mixed in ((1, None), (2, (1, 3)), (3, (2, 2))):
        request = Request("train", RUN, number, sites=3, mixed=mixed)
        metrics = {"training": {"loss": 0.5}} if number < 3 else {"epsilon": 1.25}
        meta = {"round": number, "num_patients": 8, "min_partners": 1, "metrics": metrics}
        arrays = {f"model/{name}": np.full((2, 3), number, np.float32)}
        log.write(gate.records(request, Message(arrays, meta), "the site refuses" if number == 2 else None))
    # The first round was mixed, of three sites; what was refused in the second was not.
    log.write(
        gate.records(Request("test", RUN, 3, sites=3, mixed=(3, 3)), Message({}, {"round": 3, "min_partners": 1}))
    )
    return kit


@pytest.fixture
def dossier(silofl, site, tmp_path):
    words = ("--kit", site, "--study", tmp_path / "study.yaml")
    code, out, _ = silofl("site", "dossier", *words, "--out", tmp_path / "dossier")
    assert code == 0
    return tmp_path / "dossier", out


def rows_of(folder, section):
    return [tuple(row) for row in json.loads((folder / "dossier.json").read_text())["sections"][section]["rows"]]


def test_a_dossier_says_what_left_and_how_it_was_mixed(dossier):
    folder, out = dossier
    weights = [row for row in rows_of(folder, "left") if row[3] == "weights"]
    # 2 x 3 float32 in a round; the refused round of the three was not mixed, whatever the server says.
    assert weights == [
        (RUN, "1", "train", "weights", "yes", "1", "24", "3", "3"),
        (RUN, "2", "train", "weights", "no, refused", "1", "24", "3", "-"),
        (RUN, "3", "train", "weights", "yes", "1", "24", "3", "3"),
    ]
    assert {("epsilon spent", "1.25"), ("max_epsilon", "8.0")} <= {*rows_of(folder, "limits")}
    # Numbers are this site's alone, however many it was mixed with.
    assert {row[8] for row in rows_of(folder, "left") if row[3] == "numbers"} == {"never"}
    # By the policy of the kit, a lead may do nothing here that the program asks NVFlare about.
    assert rows_of(folder, "rights")[0][1].startswith("none of submit_job, byoc")
    assert ("log goes to the server", "never") in rows_of(folder, "limits")
    assert {row[0] for row in rows_of(folder, "risk")} >= {"weights", "batchnorm", "numbers"}
    digest = json.loads((folder / "dossier.json").read_text())["digest"]
    assert f"to be noted elsewhere: {digest}" in out and list(check_dossier(folder, digest)) == []
    page = (folder / "dossier.html").read_text()
    assert "GDPR art. 35 (7) c" in page and "ISO 27001 A.8.20, A.8.24" in page and "AI Act annex IV" in page
    assert "secret" not in page + (folder / "dossier.json").read_text() and "secret" not in out


def test_an_altered_record_and_an_absent_one_are_named(silofl, refused, site, tmp_path):
    words = ("--kit", site, "--study", tmp_path / "study.yaml", "--out", tmp_path / "out")
    path = tmp_path / "state" / RUN / "egress.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"round": 2', b'"round": 4', 1))
    code, out, _ = silofl("site", "dossier", *words, "--site-config", site / "local" / "site.yaml")
    assert code == 1 and "was altered" in out
    assert "--out must be a new folder" in refused("site", "dossier", *words)
    path.unlink()
    assert "has no run with egress.jsonl" in refused("site", "dossier", *words[:-1], tmp_path / "new")
