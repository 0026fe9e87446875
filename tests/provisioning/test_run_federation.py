import pytest

from provisioning.__main__ import main
from silofl.base.files import hold_lock
from tests.provisioning.week import main as week


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data" / ".silofl").mkdir(parents=True)
    return tmp_path / "data"


def test_an_earlier_network_is_not_written_over(tmp_path, capsys):
    (tmp_path / "out" / "kits").mkdir(parents=True)
    assert main(["run-federation", "--out", str(tmp_path / "out")]) == 2
    assert "--out must be a folder without an earlier network" in capsys.readouterr().err


@pytest.mark.parametrize("run", [lambda *options: main(["run-federation", *options]), lambda *options: week(options)])
def test_a_folder_in_which_no_kit_could_start_is_refused_before_anything_is_made(tmp_path, capsys, run):
    assert run("--out", str(tmp_path / "lauf 1")) == 2
    assert "the path of the kit must have no ' ', at which NVFlare's commands break" in capsys.readouterr().err
    assert not (tmp_path / "lauf 1").exists()


def test_data_that_another_network_uses_is_refused_before_keys_are_made(tmp_path, data, capsys):
    with hold_lock(data / ".silofl" / "network.lock"):
        assert main(["run-federation", "--out", str(tmp_path / "out"), "--data", str(data)]) == 2
    assert f"{data}/.silofl must not be in use" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
