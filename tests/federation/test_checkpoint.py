import numpy as np
import pytest

from silofl.errors import ConfigError
from silofl.federation.checkpoint import checkpoint, restored
from silofl.federation.run_folder import RunFolder
from silofl.files import load_tensors, save_tensors


def assert_alike(left, right):
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


def taken_up(game, path):
    """Put a run on the disk, and go on with what comes back."""
    save_tensors(path, checkpoint(game.server))
    game.server = restored(game.study, load_tensors(path))


def test_a_checkpoint_brings_back_the_whole_run(play, tmp_path):
    game = play(name="harmofl")
    game.rounds(2)
    before = game.server
    assert before.domain.intensities
    taken_up(game, tmp_path / "checkpoint.pt")
    back = game.server
    assert_alike(back.parts["model"].common, before.parts["model"].common)
    assert_alike(back.best_parts["model"].common, before.best_parts["model"].common)
    np.testing.assert_array_equal(back.parts["amplitude"].amplitude, before.parts["amplitude"].amplitude)
    assert back.parts["amplitude"].informed == {"east": 2, "north": 2, "west": 2}
    assert back.domain == before.domain
    assert (back.best_round, back.id, back.sites, back.image_shape) == (1, "run", before.sites, (1, 32, 32))
    assert [record.as_dict() for record in back.ledger] == [record.as_dict() for record in before.ledger]


OPTIONS = {
    "fedbn": {"name": "fedbn"},
    "softpull": {"name": "softpull"},
    "harmofl": {"name": "harmofl", "preset": "paper"},
    "adafed": {"name": "adafed", "statistics": {"rounds": 1}},
    "gradients": {"name": "fedsm", "model": {"normalization": "instance"}},
    "local_steps": {"name": "fedsm", "selector": {"learning": "local_steps"}, "model": {"normalization": "instance"}},
    "moments": {"name": "fedsm", "selector": {"learning": "moments"}, "model": {"normalization": "instance"}},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_run_that_is_taken_up_from_its_checkpoint_goes_on_the_same(play, tmp_path, name):
    straight, broken = play(folder="straight", **OPTIONS[name]), play(folder="broken", **OPTIONS[name])
    straight.rounds(3)
    for number in (1, 2):
        broken.round()
        taken_up(broken, tmp_path / f"{number}.pt")
    record = broken.round()
    assert record.weights == straight.server.ledger[-1].weights
    for site in straight.sites:
        assert_alike(broken.models(site), straight.models(site))
    if "selector" in straight.server.parts:
        assert_alike(broken.server.parts["selector"].parameters, straight.server.parts["selector"].parameters)


def test_a_checkpoint_stores_a_shared_model_once(play, tmp_path):
    game = play()
    game.round()
    save_tensors(tmp_path / "three.pt", checkpoint(game.server))
    one_model = sum(array.nbytes for array in game.models("east").values())
    overhead = 2000 * len(game.models("east"))
    assert one_model < (tmp_path / "three.pt").stat().st_size < one_model + overhead


@pytest.mark.parametrize(("old", "number"), [({"json": "{}", "models": {}}, 1), ({"format": 3}, 3)])
def test_a_checkpoint_of_another_version_is_refused_in_one_sentence(make_study, tmp_path, old, number):
    sentence = (
        f"a checkpoint must have format 2, not {number}; go on with the version of SiloFL that wrote it, or start anew"
    )
    folder = RunFolder(tmp_path / "run", make_study())
    save_tensors(folder.path / "checkpoint.pt", old)
    with pytest.raises(ConfigError) as caught:
        folder.load()
    assert str(caught.value) == sentence


def test_a_broken_checkpoint_is_refused_by_its_name(play, tmp_path):
    game = play()
    game.round()
    folder = RunFolder(tmp_path / "run", game.study)
    folder.save(game.server)
    path = folder.path / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(ConfigError, match=r"checkpoint.pt must be a whole checkpoint; it is broken: restore it"):
        folder.load()
