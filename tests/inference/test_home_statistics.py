import numpy as np
import pytest
import torch
from PIL import Image

from silofl.base.errors import ConfigError
from silofl.command_line.cli import main
from silofl.inference import SuperModel
from silofl.inference.directory import read_fingerprint, read_model_folder, write_model_folder
from silofl.training.home_statistics import fix_statistics
from silofl_hospital.inference.home_statistics import take_home_statistics

HOME = {"normalization": "batch_home"}


@pytest.fixture
def model(make_contents, make_study, tmp_path):
    study = make_study(name="fedavg", model=HOME)
    write_model_folder(tmp_path / "model", make_contents("only", study=study))
    return tmp_path / "model"


@pytest.fixture
def pictures(tmp_path):
    noise, paths = np.random.default_rng(0), []
    for number in range(16):
        path = tmp_path / f"{number}.png"
        Image.fromarray(noise.integers(0, 255, (32, 32), np.uint8)).save(path)
        paths.append(path)
    return paths


def test_a_model_without_statistics_says_what_to_do(model, pictures, tmp_path, capsys):
    assert main(["predict", str(model), str(pictures[0]), "-o", str(tmp_path / "out")]) == 2
    assert "has no home statistics. Take them over at least 16 of your own images by silofl home-statistics" in (
        capsys.readouterr().err
    )


def test_the_command_writes_a_model_with_the_images_statistics(model, pictures, tmp_path, capsys):
    out = tmp_path / "ours"
    assert main(["home-statistics", str(model), *map(str, pictures), "-o", str(out)]) == 0
    assert "CAUTION" not in capsys.readouterr().err
    written = SuperModel.load(out, "cpu")
    bare = SuperModel.load(model, "cpu")
    images = torch.from_numpy(np.concatenate([bare.prepare_case(path).images for path in pictures]))
    # One batch of all: the first layer's mean does not depend on how images are dealt to batches.
    fix_statistics(bare.network("global"), [images])
    name = next(name for name in bare.network("global").state_dict() if name.endswith("running_mean"))
    states = [model_.network("global").state_dict() for model_ in (bare, written)]
    torch.testing.assert_close(states[0][name], states[1][name])
    assert main(["predict", str(out), str(pictures[0]), "-o", str(tmp_path / "out")]) == 0
    assert "of the images of the hospital that uses it (16)" in " ".join(capsys.readouterr().out.split())
    assert read_model_folder(out).facts["home_statistics"] == {"images": 16, "of": read_fingerprint(model)}


def test_few_images_are_warned_of_and_counted(model, pictures, tmp_path, capsys):
    assert main(["home-statistics", str(model), *map(str, pictures[:3]), "-o", str(tmp_path / "ours")]) == 0
    assert "CAUTION  The statistics are of few images (3). Give 16 or more" in capsys.readouterr().err
    assert "of the images of the hospital that uses it (3)" in (tmp_path / "ours" / "MODEL_CARD.md").read_text()


def test_a_model_keeps_the_fingerprint_for_its_withdrawal(model, pictures, tmp_path):
    take_home_statistics(model, pictures[:2], tmp_path / "first")
    take_home_statistics(tmp_path / "first", pictures[2:4], tmp_path / "second")
    assert read_model_folder(tmp_path / "second").facts["home_statistics"]["of"] == read_fingerprint(model)


def test_other_normalisations_and_a_taken_folder_are_refused(make_contents, make_study, pictures, tmp_path, model):
    write_model_folder(tmp_path / "plain", make_contents("only", study=make_study(name="fedavg")))
    with pytest.raises(ConfigError, match="takes no home statistics"):
        take_home_statistics(tmp_path / "plain", pictures, tmp_path / "out")
    with pytest.raises(ConfigError, match="Folder 'plain' already exists. Choose another name"):
        take_home_statistics(model, pictures, tmp_path / "plain")
