import csv
import json
import shutil

import numpy as np
import pytest
import yaml

from silofl.base.files import hold_lock
from silofl.data.cache import load_or_prepare
from silofl.data.cache_entries import CacheSource
from silofl.data.learnt import FILE as LEARNT
from silofl.data.parts import PreparedCase
from silofl.federation.egress_log import EgressLog
from silofl.flare.paths import mark_in_use
from silofl.inference.cases_table import FILE as CASES
from silofl.setup.site import Site
from silofl_hospital.site.kept import find_studies

RUN, OLDER = "organs-20260102-030405-0a1f", "bones-20260102-030405-0a1f"
SENT = {"task": "train", "refused": False, "name": "a", "purpose": "p", "bytes": 4}


def cases(*wanted):
    """Prepare cases, each by its part, its name and its patient."""

    def prepare():
        for part, case, patient in wanted:
            rows = np.ones((2, 1, 4, 4), np.float32)
            yield part, PreparedCase(case, patient, rows, np.ones((2, 4, 4), np.uint8), (0, 1))

    return prepare


def cached(cache, letter, dataset, *wanted):
    load_or_prepare(cache, letter * 32, cases(*wanted), CacheSource(str(dataset), "old"))
    return cache / (letter * 32)


def write_run(folder, names):
    folder.mkdir(parents=True)
    with (folder / "scores.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([("case", "value"), *((name, 0.5) for name in names)])
    np.savez_compressed(folder / "pictures.npz", images=np.ones((len(names), 4, 4)), cases=np.array(names))
    np.savez_compressed(folder / "selector.npz", features=np.ones((2, 3)))
    learnt = {"datasets": ["d"], "cases": {name: [name * 8] for name in names}}
    (folder / LEARNT).write_text(json.dumps(learnt))


@pytest.fixture
def site(tmp_path):
    """A site with two studies; patient p7 was in both, and is no longer in the dataset.json of either."""
    (tmp_path / "local").mkdir()
    settings = {"data": f"{tmp_path}/data/{{study}}", "state_dir": f"{tmp_path}/state/{{study}}"}
    (tmp_path / "local" / "site.yaml").write_text(yaml.safe_dump(settings))
    for study, run in (("organs", RUN), ("bones", OLDER)):
        data, state = tmp_path / "data" / study, tmp_path / "state" / study
        data.mkdir(parents=True)
        write_records(tmp_path, study, "p1")
        cached(state / "cache", "a", data, ("training", "doe-1", "p7"), ("test", "smith", "p1"))
        cached(state / "cache", "b", data, ("training", "smith", "p1"), ("test", "roe", "p2"))
        write_run(state / run, ["doe-1", "smith", "roe"])
        log = EgressLog(state / run)
        log.write([SENT | {"round": number, "kind": "weights"} for number in (1, 2, 4)])
        log.write([SENT | {"round": 9, "kind": "amplitude", "refused": True}])
    return tmp_path


def write_records(folder, study, *patients):
    records = [{"image": f"{patient}.png", "label": f"{patient}_m.png", "patient": patient} for patient in patients]
    content = {"task": "segmentation", "labels": {"1": "a"}, "training": records, "test": []}
    (folder / "data" / study / "dataset.json").write_text(json.dumps(content))


def scores(folder):
    return [line.split(",")[0] for line in (folder / "scores.csv").read_text().splitlines()]


def test_a_patient_goes_from_all_files_and_others_stay(silofl, site):
    killed = site / "state/organs" / RUN / ".pictures.npz.9681.tmp", site / f"state/organs/cache/.{'c' * 32}-x1"
    killed[0].write_bytes(b"some patient's slice")
    killed[1].mkdir()
    # In any spelling.
    code, out, error = silofl("site", "forget", "--patient", "\uff307 ", "--yes")
    assert (code, error) == (0, "")
    # What a killed process left of pictures and of an entry goes too.
    assert f"{killed[0].name}: all of it" in out and not any(path.exists() for path in killed)
    for study, run in (("organs", RUN), ("bones", OLDER)):
        state = site / "state" / study
        assert not (state / "cache" / ("a" * 32)).exists() and (state / "cache" / ("b" * 32)).is_dir()
        assert scores(state / run) == ["case", "smith", "roe"]
        assert not any((state / run / name).exists() for name in ("selector.npz", "pictures.npz"))
        assert json.loads((state / run / LEARNT).read_text())["cases"].keys() == {"smith", "roe"}
        assert (state / run / "egress.jsonl").is_file()
    assert "p7" not in out and "doe" not in out
    # What cannot be taken back is said with the record that has it.
    assert f"what run {RUN} has sent: {site / 'state/organs' / RUN / 'egress.jsonl'}" in out
    assert "What stays, in bones, organs:" in out
    assert "by the cache, the patient was in: training" in out and "tell the study lead" in out


def test_a_patient_may_be_forgotten_in_one_study(silofl, site):
    other = cached(site / "state/organs/cache", "d", "/elsewhere", ("training", "doe-1", "p7"))
    assert silofl("site", "forget", "organs", "--patient", "p7", "--yes")[0] == 0
    assert not (site / "state/organs/cache" / ("a" * 32)).exists()
    assert (site / "state/bones/cache" / ("a" * 32)).exists()
    assert not other.exists()


@pytest.mark.parametrize(
    ("written", "asked"),
    [("p7", "p7 "), (7, "7"), ("p7\u200b", "\uff507"), ("P7^", "p7")],
)
def test_a_patient_whom_dataset_json_still_names_is_refused(refused, site, written, asked):
    write_records(site, "bones", "p1", written)
    error = refused("site", "forget", "--patient", asked, "--yes")
    assert "dataset.json still names the patient, in 1 of its records; remove these" in error
    assert "p7" not in error.replace(str(site), "") and (site / "state/organs/cache" / ("a" * 32)).is_dir()


def assert_all_is_there(site):
    assert (site / "state/organs/cache" / ("a" * 32)).is_dir() and "doe-1" in scores(site / "state/organs" / RUN)


@pytest.mark.parametrize(("asked", "used"), [(("--patient", "p7"), ""), (("organs",), "0a1f")])
def test_nothing_is_removed_while_the_site_runs(silofl, refused, site, asked, used):
    (site / "0a1f").mkdir()
    command = ("site", "forget", *asked, "--yes")
    running = mark_in_use(site / used)
    error = refused(*command)
    assert "the site still runs (" in error and "nothing was deleted" in error
    assert_all_is_there(site)
    # Its lock file stays where it has stopped.
    running.close()
    assert silofl(*command)[0] == 0


@pytest.mark.parametrize("place", ["state/organs/cache/lock", f"state/bones/{OLDER}/lock"])
def test_nothing_is_removed_while_a_run_or_cache_is_written(silofl, site, place):
    with hold_lock(site / place):
        code, _, error = silofl("site", "forget", "--patient", "p7", "--yes")
    assert code == 2 and "is in use" in error
    assert_all_is_there(site)


def test_an_unknown_patients_cases_may_be_named_by_hand(silofl, site):
    code, out, _ = silofl("site", "forget", "--patient", "p07", "--yes")
    assert code == 3 and "no cache, picture or score of this site names the patient" in out
    assert not (site / "state/organs" / RUN / "selector.npz").exists()
    assert_all_is_there(site)
    out = silofl("site", "forget", "organs", "--patient", "p8", "--yes", "--cases", "roe")[1]
    assert scores(site / "state/organs" / RUN) == ["case", "doe-1", "smith"]
    # The entry with case roe; the other one has none of the cases.
    assert not (site / "state/organs/cache" / ("b" * 32)).exists() and "patient was in: test" in out
    assert (site / "state/organs/cache" / ("a" * 32)).is_dir()


@pytest.mark.parametrize("cache_dir", ["state/{study}/cache", "shared"])
def test_another_patients_case_of_the_same_name_stays(silofl, site, cache_dir):
    settings = site / "local" / "site.yaml"
    settings.write_text(yaml.safe_dump(yaml.safe_load(settings.read_text()) | {"cache_dir": f"{site}/{cache_dir}"}))
    entries = {
        study: cached(site / cache_dir.format(study=study), letter, site / "data" / study, ("test", "doe-1", patient))
        for study, letter, patient in (("bones", "e", "p9"), ("organs", "f", "p7"))
    }
    shutil.rmtree(site / "state/bones/cache" / ("a" * 32))
    # Patient p9 takes part in the other study on.
    write_records(site, "bones", "p9")
    assert silofl("site", "forget", "--patient", "p7", "--yes")[0] == 0
    assert entries["bones"].is_dir() and not entries["organs"].exists()
    assert "doe-1" in scores(site / "state/bones" / OLDER) and "doe-1" not in scores(site / "state/organs" / RUN)
    with np.load(site / "state/bones" / OLDER / "pictures.npz") as pictures:
        assert "doe-1" in pictures["cases"].tolist()


def test_a_case_that_a_study_still_names_is_refused(silofl, refused, site):
    write_records(site, "bones", "p9")
    path = site / "data/bones/dataset.json"
    path.write_text(path.read_text().replace('"patient": "p9"', '"patient": "p9", "case": "roe"'))
    error = refused("site", "forget", "--patient", "p8", "--cases", "roe", "--yes")
    assert "in 1 of its records" in error
    assert "where it is another patient's case, name the STUDY that is meant" in error
    assert silofl("site", "forget", "organs", "--patient", "p8", "--cases", "roe", "--yes")[0] == 0
    assert "roe" in scores(site / "state/bones" / OLDER) and "roe" not in scores(site / "state/organs" / RUN)


def test_a_patient_goes_from_the_table_of_an_evaluation_job(silofl, site):
    path = site / "state/organs" / RUN / CASES
    rows = ["case,part,dice,warnings,refused", 'smith,test,0.31,"a, b",', "doe-1,test,0.31,,", "doe-1,test,,,no image"]
    path.write_text("\n".join(rows))
    assert silofl("site", "forget", "organs", "--patient", "p7", "--yes")[0] == 0
    assert path.read_text().splitlines() == rows[:2]


def test_shared_folders_are_searched_before_any_run(silofl, refused, site):
    # As after `site check` alone: nothing there says which study it was.
    settings = {"data": f"{site}/data/organs", "state_dir": f"{site}/shared"}
    (site / "local" / "site.yaml").write_text(yaml.safe_dump(settings))
    entry = cached(site / "shared/cache", "a", site / "data/organs", ("test", "doe-1", "p7"))
    write_records(site, "organs", "p7")
    assert "still names the patient" in refused("site", "forget", "--patient", "p7", "--yes")
    write_records(site, "organs", "p1")
    code, out, _ = silofl("site", "forget", "--patient", "p7", "--yes")
    assert code == 0 and not entry.exists() and "patient was in: test" in out


@pytest.mark.parametrize(
    ("data", "state", "studies"),
    [
        ("data/{study}", "state/{study}/{site}", ["bones", "organs"]),
        ("data/{study}", "shared", ["bones", "lungs", "organs"]),
        ({"organs": "data/organs"}, "nothing/{study}", ["organs"]),
    ],
)
def test_all_studies_that_left_anything_or_have_data_are_found(site, data, state, studies):
    for folder in ("state/organs/north", "state/bones/north", f"shared/{RUN}", "shared/lungs-20260102-030405-0a1f"):
        (site / folder).mkdir(parents=True, exist_ok=True)
    if isinstance(data, dict):
        data = {study: f"{site}/{folder}" for study, folder in data.items()}
    else:
        data = f"{site}/{data}"
    assert find_studies(Site(data=data, state_dir=f"{site}/{state}"), "north") == studies


def test_forget_needs_a_study_or_a_patient(refused, site):
    assert "--patient is missing" in refused("site", "forget", "--yes")
    assert "--patient is missing" in refused("site", "forget", "organs", "--cases", "a")
    assert "study must be letters" in refused("site", "forget", "..", "--patient", "p7")
    # As a script gives it whose variable is empty; no study is deleted in its place.
    for patient in ("", " "):
        assert "--patient must be an ID, not '" in refused("site", "forget", "organs", "--patient", patient, "--yes")
    assert (site / "state/organs" / RUN / "egress.jsonl").is_file()
