from unittest.mock import Mock

import pytest
import yaml

from silofl.base.errors import ConfigError
from silofl.federation.egress_log import EgressLog
from silofl.setup.site import Site
from silofl_hospital.site.forget import delete_kept, find_kept

RUN = "organs-20260102-030405-0a1f"


def write(path, content="12345"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


@pytest.fixture
def site(tmp_path):
    def make(data="data/{study}", state="state/{study}", **settings):
        folders = {key: str(tmp_path / value) for key, value in {"data": data, "state_dir": state, **settings}.items()}
        return Site(**folders)

    return make


def test_a_studys_folder_goes_and_all_else_stays(tmp_path, site):
    data = write(tmp_path / "data/organs/dataset.json")
    other = write(tmp_path / "state/organs2/run/rounds/round_0001.pt")
    write(tmp_path / "state/organs" / RUN / "rounds/round_0001.pt", "123")
    write(tmp_path / "state/organs/cache/x.npy", "1234")
    kept = find_kept(site(), "organs", None)
    # 3 + 4 bytes in 2 files
    assert (kept.folders, kept.shared) == ({tmp_path / "state/organs": (2, 7)}, {})
    assert (tmp_path / "state/organs/cache/x.npy").exists()
    # A link goes, and what it points to stays.
    (tmp_path / "state/organs/link").symlink_to(data.parent)
    delete_kept(find_kept(site(), "organs", None))
    assert not (tmp_path / "state/organs").exists()
    assert data.exists() and other.exists()
    assert find_kept(site(), "organs", None).folders == {}


def test_only_this_studys_runs_go_from_a_shared_folder(tmp_path, site):
    write(tmp_path / "state/north" / RUN / "scores.csv")
    others = [
        write(tmp_path / "state/north" / name / "x")
        for name in (f"more-{RUN}", f"organs-2-{RUN[7:]}", "organs", "cache", "south")
    ]
    kept = find_kept(site(state="state/{site}"), "organs", "north")
    assert list(kept.folders) == [tmp_path / "state/north" / RUN]
    assert list(kept.shared) == [tmp_path / "state/north/cache"]
    delete_kept(kept)
    assert not (tmp_path / "state/north" / RUN).exists() and all(path.exists() for path in others)


def test_an_own_cache_goes_and_a_shared_one_is_named(tmp_path, site):
    write(tmp_path / "own/organs/x")
    write(tmp_path / "shared/x")
    assert list(find_kept(site(cache_dir="own/{study}"), "organs", None).folders) == [tmp_path / "own/organs"]
    kept = find_kept(site(cache_dir="shared"), "organs", None)
    assert kept.folders == {} and "decoded images of any study lie there" in kept.shared[tmp_path / "shared"]


@pytest.mark.parametrize("data", ["state/organs", "state/organs/data", "link"])
def test_a_folder_around_the_data_is_never_deleted(tmp_path, site, data):
    dataset = write(tmp_path / "state/organs/data/dataset.json")
    (tmp_path / "link").symlink_to(tmp_path / "state/organs/data")
    with pytest.raises(ConfigError, match="which would be deleted"):
        find_kept(site(data=data), "organs", None)
    assert dataset.exists()


def test_a_study_without_data_can_be_forgotten(tmp_path):
    write(tmp_path / "state/organs/other/dataset.json")
    state = str(tmp_path / "state/{study}")
    found = find_kept(Site(data={"other": str(tmp_path / "data")}, state_dir=state), "organs", None)
    assert found.folders == {tmp_path / "state/organs": (1, 5)}
    with pytest.raises(ConfigError, match="which would be deleted"):
        find_kept(Site(data={"other": str(tmp_path / "state/organs/other")}, state_dir=state), "organs", None)


def test_a_state_on_another_disk_goes_with_its_link(tmp_path, site):
    write(tmp_path / "large/organs/x")
    (tmp_path / "state").mkdir(exist_ok=True)
    (tmp_path / "state/organs").symlink_to(tmp_path / "large/organs")
    delete_kept(find_kept(site(), "organs", None))
    assert not (tmp_path / "large/organs").exists() and not (tmp_path / "state/organs").is_symlink()


def test_nothing_is_deleted_while_a_run_uses_it(tmp_path, site):
    first = write(tmp_path / "state/organs/a-run/x")
    log = EgressLog(tmp_path / "state/organs" / RUN)
    with pytest.raises(ConfigError, match="is in use by another run"):
        delete_kept(find_kept(site(), "organs", None))
    assert first.exists() and log.path.parent.is_dir()


@pytest.fixture
def settle(tmp_path):
    """Write a site.yaml where it is looked for."""

    def settle(**changes):
        settings = {"data": f"{tmp_path}/data/{{study}}", "state_dir": f"{tmp_path}/state/{{study}}"}
        write(tmp_path / "local" / "site.yaml", yaml.safe_dump(settings | changes))

    return settle


@pytest.fixture
def kept(tmp_path, settle):
    """Return a file that a site keeps of the study `organs`, beside its data."""
    write(tmp_path / "data/organs/dataset.json")
    settle()
    return write(tmp_path / "state" / "organs" / "run" / "scores.csv")


def test_forget_deletes_the_study_and_names_a_slip(silofl, tmp_path, kept):
    code, out, error = silofl("site", "forget", "organ", "--yes")
    assert (code, out) == (2, "") and kept.exists()
    assert "This site keeps nothing of study 'organ' (did you mean 'organs'?); nothing was deleted" in error
    code, out, error = silofl("site", "forget", "organs", "--yes")
    assert (code, error) == (0, "") and not kept.exists()
    assert f"{tmp_path / 'state' / 'organs'}: 1 files, 5 bytes\ndeleted: all of the above" in out
    assert (tmp_path / "data" / "organs" / "dataset.json").exists()
    code, out, error = silofl("site", "forget", "organs", "--yes")
    assert (code, out) == (2, "") and "nothing was deleted" in error and "did you mean" not in error


def test_images_that_stay_are_no_success(silofl, refused, tmp_path, kept, settle):
    settle(state_dir=f"{tmp_path}/state/{{study}}/{{site}}")
    assert "--site is missing" in refused("site", "forget", "organs", "--yes")
    (tmp_path / "scratch").mkdir()
    settle(state_dir=f"{tmp_path}/state/{{study}}/{{site}}", cache_dir=str(tmp_path / "scratch"))
    code, out, _ = silofl("site", "forget", "organs", "--yes", "--site", "run")
    assert code == 3 and not kept.exists()
    assert f"not deleted: {tmp_path / 'scratch'}; decoded images of any study" in out


@pytest.mark.parametrize(("answer", "is_deleted"), [("y", True), ("", False)])
def test_forget_asks_first(silofl, monkeypatch, kept, answer, is_deleted):
    monkeypatch.setattr("builtins.input", lambda question: answer)
    code, out, _ = silofl("site", "forget", "organs")
    assert code == 0 and kept.exists() != is_deleted
    assert ("nothing was deleted" in out) != is_deleted


def test_nothing_is_deleted_where_nobody_can_answer(silofl, monkeypatch, kept):
    monkeypatch.setattr("builtins.input", Mock(side_effect=EOFError))
    code, _, error = silofl("site", "forget", "organs")
    assert code == 2 and "--yes is missing where nobody can answer" in error and kept.exists()
