import pytest

from provisioning.__main__ import main
from provisioning.workspace import PROJECT
from silofl.flare.kit import read_kit


def test_adding_a_hospital_changes_no_other_kit(workspace, kits, wheel, files_of):
    before = files_of(kits)
    arguments = ["add-hospital", str(workspace), "west", "west_hospital", "--admin", "it@west.example.org"]
    assert main(arguments) == 0
    after, west = files_of(kits), read_kit(kits / "west")
    assert {path.parts[0] for path in after.keys() - before.keys()} == {"west", "it@west.example.org"}
    assert {path: after[path] for path in before} == before
    assert west.root == read_kit(kits / "north").root
    assert (west.name, west.org, west.address.host, west.address.port) == ("west", "west_hospital", "localhost", 8002)
    assert (kits / "west" / wheel.name).read_bytes() == wheel.read_bytes()
    assert main(["check-kits", str(workspace)]) == 0
    # All kits can be filled again.
    assert main(["make-kits", str(PROJECT), str(workspace), "--wheel", str(wheel), "--host", "localhost"]) == 0
    assert files_of(kits) == after


@pytest.mark.parametrize(
    ("name", "org", "sentence"),
    [
        ("north", "north_hospital", "participant 'north' must be new"),
        ("we st", "west", "must begin with a letter or a digit"),
    ],
)
def test_a_taken_or_impossible_name_changes_nothing(workspace, files_of, capsys, name, org, sentence):
    before = files_of(workspace)
    assert main(["add-hospital", str(workspace), name, org]) == 2
    assert sentence in capsys.readouterr().err
    assert files_of(workspace) == before


def test_a_missing_study_makes_no_kit(workspace, files_of, tmp_path, capsys):
    before = files_of(workspace)
    command = ["add-hospital", str(workspace), "west", "west_hospital"]
    assert main([*command, "--study", str(tmp_path / "study.yaml")]) == 2
    assert "study.yaml does not exist" in capsys.readouterr().err and files_of(workspace) == before
    assert main(command) == 0
