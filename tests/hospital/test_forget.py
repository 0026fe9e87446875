import pytest

from silofl.errors import ConfigError
from silofl.federation.egress_log import EgressLog
from silofl.hospital.forget import forget, kept_of
from silofl.site import Site

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


def test_a_studys_folder_goes_with_all_in_it_and_data_and_other_studies_stay(tmp_path, site):
    data = write(tmp_path / "data/organs/dataset.json")
    other = write(tmp_path / "state/organs2/run/rounds/round_0001.pt")
    write(tmp_path / "state/organs" / RUN / "rounds/round_0001.pt", "123")
    write(tmp_path / "state/organs/cache/x.npy", "1234")
    kept = kept_of(site(), "organs", None)
    # 3 + 4 bytes in 2 files
    assert (kept.folders, kept.shared) == ({tmp_path / "state/organs": (2, 7)}, {})
    forget(kept)
    assert not (tmp_path / "state/organs").exists()
    assert data.exists() and other.exists()


def test_looking_deletes_nothing(tmp_path, site):
    kept_file = write(tmp_path / "state/organs/x")
    kept_of(site(), "organs", None)
    assert kept_file.exists()


def test_of_a_folder_of_several_studies_only_this_studys_runs_go(tmp_path, site):
    write(tmp_path / "state/north" / RUN / "scores.csv")
    others = [
        write(tmp_path / "state/north" / name / "x")
        for name in (f"more-{RUN}", f"organs-2-{RUN[7:]}", "organs", "cache", "south")
    ]
    kept = kept_of(site(state="state/{site}"), "organs", "north")
    assert list(kept.folders) == [tmp_path / "state/north" / RUN]
    assert list(kept.shared) == [tmp_path / "state/north/cache"]
    forget(kept)
    assert not (tmp_path / "state/north" / RUN).exists() and all(path.exists() for path in others)


def test_a_cache_of_the_studys_own_goes_too_and_a_shared_one_is_named(tmp_path, site):
    write(tmp_path / "own/organs/x")
    write(tmp_path / "shared/x")
    assert list(kept_of(site(cache_dir="own/{study}"), "organs", None).folders) == [tmp_path / "own/organs"]
    kept = kept_of(site(cache_dir="shared"), "organs", None)
    assert kept.folders == {} and "other studies use it too" in kept.shared[tmp_path / "shared"]


def test_a_study_that_left_nothing_needs_nothing_deleted(site):
    assert kept_of(site(), "organs", None).folders == {}


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "/", "*"])
def test_a_study_or_a_site_that_is_no_name_is_refused(site, name):
    with pytest.raises(ConfigError, match="study must be letters, digits"):
        kept_of(site(), name, None)
    with pytest.raises(ConfigError, match="site must be letters, digits"):
        kept_of(site(), "organs", name)


@pytest.mark.parametrize("folders", [{"state": "state/{study}/{site}"}, {"data": "data/{site}"}])
def test_the_sites_name_must_be_given_where_its_settings_use_it(site, folders):
    with pytest.raises(ConfigError, match="--site must name the site"):
        kept_of(site(**folders), "organs", None)


@pytest.mark.parametrize("data", ["state/organs", "state/organs/data", "link"])
def test_a_folder_around_the_data_is_never_deleted(tmp_path, site, data):
    dataset = write(tmp_path / "state/organs/data/dataset.json")
    (tmp_path / "link").symlink_to(tmp_path / "state/organs/data")
    with pytest.raises(ConfigError, match="the data must lie outside of what is deleted"):
        kept_of(site(data=data), "organs", None)
    assert dataset.exists()


def test_the_data_of_every_study_that_the_site_names_is_kept(tmp_path):
    settings = Site(data={"other": str(tmp_path / "state/organs/other")}, state_dir=str(tmp_path / "state/{study}"))
    write(tmp_path / "state/organs/other/dataset.json")
    with pytest.raises(ConfigError, match="the data must lie outside"):
        kept_of(settings, "organs", None)


def test_a_study_whose_data_the_site_no_longer_names_can_be_forgotten(tmp_path):
    settings = Site(data={"other": str(tmp_path / "data")}, state_dir=str(tmp_path / "state/{study}"))
    write(tmp_path / "state/organs/x")
    assert kept_of(settings, "organs", None).folders == {tmp_path / "state/organs": (1, 5)}


def test_a_link_in_the_state_is_deleted_and_what_it_points_to_stays(tmp_path, site):
    data = write(tmp_path / "data/organs/dataset.json")
    write(tmp_path / "state/organs/x")
    (tmp_path / "state/organs/link").symlink_to(data.parent)
    forget(kept_of(site(), "organs", None))
    assert data.exists() and not (tmp_path / "state/organs").exists()


def test_nothing_is_deleted_while_a_run_uses_it(tmp_path, site):
    first = write(tmp_path / "state/organs/a-run/x")
    log = EgressLog(tmp_path / "state/organs" / RUN, "north", "organs")
    with pytest.raises(ConfigError, match="must not be in use; another run still writes it"):
        forget(kept_of(site(), "organs", None))
    assert first.exists() and log.path.parent.is_dir()
