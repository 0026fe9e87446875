"""Backup and restore: the provisioner's workspace with the root's key, and the server's runs."""

import shutil
import tarfile

from provisioning.__main__ import main
from silofl.federation.run_folder import RunFolder
from silofl.flare.kit import read_kit

from ..conftest import SMALL_UNET, assert_alike


def packed(folder, target):
    """Write a folder to an archive, as a backup does; returns the archive."""
    with tarfile.open(target, "w:gz") as archive:
        archive.add(folder, arcname=folder.name)
    return target


def unpacked(archive, target):
    with tarfile.open(archive) as opened:
        opened.extractall(target, filter="data")


def test_a_hospital_is_added_from_a_restored_workspace(workspace, tmp_path, files_of, capsys):
    archive = packed(workspace, tmp_path / "workspace.tar.gz")
    before = files_of(workspace)
    shutil.rmtree(workspace)
    unpacked(archive, tmp_path)
    assert files_of(workspace) == before
    assert main(["add-hospital", str(workspace), "west", "west_hospital"]) == 0
    kits = workspace / "silofl" / "prod_00"
    assert read_kit(kits / "west").root == read_kit(kits / "north").root
    # The archive keeps the modes: a key that others could read would be a failure.
    assert main(["check-kits", str(workspace)]) == 0
    assert capsys.readouterr().out.endswith("all is right\n")


def test_a_run_from_a_restored_folder_has_the_same_weights(play, tmp_path):
    whole = play(folder="whole", network=SMALL_UNET)
    whole.rounds(3)
    game, folder = play(network=SMALL_UNET), RunFolder(tmp_path / "server" / "run", whole.study)
    game.rounds(2)
    folder.save(game.server)
    archive = packed(folder.path, tmp_path / "run.tar.gz")
    # What the server did after its backup is lost with it; the sites are one round ahead then, and go back.
    game.round()
    shutil.rmtree(folder.path)
    unpacked(archive, folder.path.parent)
    game.server = RunFolder(folder.path, whole.study).load(None)
    assert game.server.finished_rounds == 2
    game.round()
    assert_alike(game.models("east"), whole.models("east"))
